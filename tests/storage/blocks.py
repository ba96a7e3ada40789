"""Blocks taken apart again."""

from __future__ import annotations

from millstream.storage.segments.block import Block, Columns, Message, message_digest


def columns_of(*blocks: Block) -> Columns:
    """The messages of blocks, as `encode_block` takes them."""
    columns = Columns([], [], [], [], [])
    for block in blocks:
        at = 0
        for length in block.lengths:
            columns.payloads.append(bytes(block.payload[at : at + length]))
            at += length
        columns.times_ms.extend(block.times_ms)
        columns.ids_ms.extend(block.ids_ms)
        columns.id_seqs.extend(block.id_seqs)
        columns.sequences.extend(block.sequences)
    return columns


def rows_of(columns: Columns) -> list[Message]:
    """The same messages, as `SegmentBuilder.add` takes them."""
    return list(zip(*columns, strict=True))


def digest_of(*blocks: Block) -> int:
    """The sum of the digests of the messages, from the messages alone."""
    total = 0
    for block in blocks:
        offset = block.first_offset
        for payload in columns_of(block).payloads:
            total += message_digest(offset, payload)
            offset += len(payload)
    return total % (1 << 128)
