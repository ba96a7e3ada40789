"""Blocks taken apart again."""

from __future__ import annotations

from millstream.storage.segments.block import Block, Columns


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
