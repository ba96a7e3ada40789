"""What a checkpoint makes of a journal, compared with the plainest reading of the same facts.

Checkpoints take short cuts for the sake of speed, for plain appends and for single messages. The
stories here have every kind of fact, mixed at random and cut into checkpoints anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.scripts import Story, seeds
from tests.engine.world import OBJECTS, Entry, World, applied
from tests.storage.faulty_files import QuickFiles
from tests.storage.journals import open_journal

from millstream.model import facts
from millstream.model.codec import encode_facts
from millstream.model.facts import Appended, SnapshotPublished
from millstream.model.names import split_key
from millstream.model.records import StreamRecord
from millstream.node import archiving, checkpoint
from millstream.node.archiving import ArchiveKeeper
from millstream.node.checkpoint import Checkpointer
from millstream.node.merging import Merger
from millstream.storage.archive.chunk import MESSAGE
from millstream.storage.archive.object import read_chunk
from millstream.storage.catalog import CatalogReader
from millstream.storage.checksum import crc32
from millstream.storage.data_dir import DataDir
from millstream.storage.segments.block import Block, decode_block, message_digest
from millstream.storage.segments.segment import segment_name
from millstream.storage.transactions.objects import object_name

EVERYTHING = 1 << 40


def told(seed: int, length: int) -> list[Entry]:
    """The journal of a random story. Its time never goes back, which the node's clock sees to."""
    world = World(producers_max=3)
    Story(world, seed).play(length)
    journal: list[Entry] = []
    for entry in world.journal:
        at_ms = max(entry.at_ms, journal[-1].at_ms if journal else 0)
        journal.append(Entry(findable(entry.fact), entry.sequence, at_ms))
    return journal


def findable(fact: facts.Fact) -> facts.Fact:
    """A fact whose payload lies in an object, with the checksum that `World` leaves out."""
    if not isinstance(fact, Appended) or fact.stored is None:
        return fact
    payload = OBJECTS.stored(fact.stored, facts.size_of(fact))
    return replace(fact, stored=replace(fact.stored, crc=crc32(payload)))


def written(root: Path, journal: list[Entry], chance: random.Random) -> list[int]:
    """Put the story on disk; the sequences at which its batches end."""
    log = open_journal(DataDir(root).journal)
    ends: list[int] = []
    for at_ms, entries in groupby(journal, key=lambda entry: entry.at_ms):
        moment = list(entries)
        while moment:
            size = chance.randint(1, len(moment))
            batch, moment = moment[:size], moment[size:]
            log.write(batch[0].sequence, at_ms, encode_facts([entry.fact for entry in batch]))
            ends.append(batch[-1].sequence)
    log.sync()
    log.close()
    stored = DataDir(root).objects / object_name(1)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(OBJECTS.stored(facts.Stored(1, 0, 0), EVERYTHING))
    return ends


def whole(journal: list[Entry]) -> list[Entry]:
    """The facts with their payloads, wherever those lie; parts have become the appends they were for."""
    uploads: dict[int, list[bytes]] = {}
    found: list[Entry] = []
    for fact, sequence, at_ms in journal:
        if isinstance(fact, facts.PartStored):
            uploads.setdefault(fact.upload or sequence, []).append(fact.payload)
            continue
        if isinstance(fact, facts.PartsDropped):
            continue
        if isinstance(fact, Appended) and fact.upload is not None:
            fact = replace(fact, payload=b"".join(uploads[fact.upload]), upload=None)
        elif isinstance(fact, Appended) and fact.stored is not None:
            fact = replace(fact, payload=OBJECTS.stored(fact.stored, facts.size_of(fact)), stored=None)
        found.append(Entry(fact, sequence, at_ms))
    return found


def messages_of(journal: list[Entry], record: StreamRecord) -> Iterator[tuple[int, bytes, int, int, int, int]]:
    """Offset, payload, time, id and sequence of what a stream has kept."""
    for fact, sequence, at_ms in journal:
        if isinstance(fact, Appended) and fact.stream == record.number:
            offset = fact.offset
            for index, length in enumerate([len(fact.payload)] if fact.lengths is None else fact.lengths):
                payload = fact.payload[offset - fact.offset :][:length]
                if offset >= record.earliest:
                    yield offset, payload, at_ms, fact.id_ms, fact.id_seq + index, sequence
                offset += length


def messages_in(blocks: list[Block], record: StreamRecord) -> Iterator[tuple[int, bytes, int, int, int, int]]:
    for block in blocks:
        offset, digest = block.first_offset, 0
        for length, *rest in zip(block.lengths, *block[3:7], strict=True):
            payload = bytes(block.payload[offset - block.first_offset :][:length])
            digest += message_digest(offset, payload)
            if offset >= record.earliest:
                yield offset, payload, *rest
            offset += length
        assert block.digest in (digest % (1 << 128), None)  # None: it was shared


class Disk:
    """What the checkpoints of a journal have left."""

    def __init__(self, checkpointer: Checkpointer, root: Path) -> None:
        self._objects = checkpointer.objects
        self.catalog = CatalogReader(DataDir(root).catalog)

    def blocks(self, stream: int) -> list[Block]:
        extents = self.catalog.extents(stream, 0, EVERYTHING, 10_000)
        return [decode_block(self._objects.get_range(segment_name(e.segment), e.at, e.size), stream) for e in extents]

    def archive(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for place in sorted(self.catalog.archives.all_chunks()):
            chunk = read_chunk(self._objects, place.archive, place.at, place.size)
            rows = chunk.whole_facts()
            assert all(
                row.offset == row.fact.offset + facts.size_of(row.fact) for row in rows if type(row.fact) is Appended
            )
            found.setdefault(place.bucket, []).extend(Entry(row.fact, row.sequence, row.at_ms) for row in rows)
        return found

    def types_of_messages(self) -> dict[int, set[str]]:
        """The content types under which the archive has each stream's messages."""
        found: dict[int, set[str]] = {}
        for place in self.catalog.archives.all_chunks():
            chunk = read_chunk(self._objects, place.archive, place.at, place.size)
            columns, streams = chunk.columns(), chunk.names()[1]
            for index, kind in zip(columns.streams, columns.kinds, strict=True):
                if kind == MESSAGE:
                    found.setdefault(streams[index].number, set()).add(streams[index].content_type)
        return found


def checked(journal: list[Entry], disk: Disk) -> None:
    streams, buckets = applied(journal)
    facts_of: dict[str, list[Entry]] = {}
    snapshots: dict[int, SnapshotPublished] = {}
    producers: dict[tuple[int, str], tuple[int, int]] = {}
    for entry in (plain := whole(journal)):
        fact = entry.fact
        if isinstance(fact, facts.BucketFact):
            facts_of.setdefault(fact.bucket, []).append(entry)
            continue
        number = entry.sequence if isinstance(fact, facts.StreamCreated) else fact.stream
        facts_of.setdefault(split_key(streams[number].key)[0], []).append(entry)
        if isinstance(fact, SnapshotPublished):
            snapshots[number] = fact
        is_repeated = isinstance(fact, facts.Closed) and fact.is_repeated
        if isinstance(fact, Appended | facts.Closed) and fact.producer is not None and not is_repeated:
            producers[number, fact.producer.id] = (fact.producer.epoch, fact.producer.seq)
    assert disk.archive() == facts_of
    for number, types in disk.types_of_messages().items():
        assert types == {streams[number].content_type}
    for name, bucket in buckets.items():
        assert disk.catalog.bucket(name) == (None if bucket.deleted else bucket)
    for number, record in streams.items():
        assert disk.catalog.stream_numbered(number) == (None if record.deleted else record)
        if record.deleted:
            assert disk.blocks(number) == disk.blocks(-number) == []
            continue
        assert list(messages_in(disk.blocks(number), record)) == list(messages_of(plain, record))
        assert all(block.next_offset > record.earliest for block in disk.blocks(number))
        published = snapshots[number].payload if record.snapshot is not None else b""
        assert b"".join(block.payload for block in disk.blocks(-number)) == published
        for (stream, name), known in producers.items():
            if stream == number:
                assert disk.catalog.producer(number, name) == known


def merge_all(checkpointer: Checkpointer, block_bytes: int) -> None:
    """Merge whatever there is of segments and archive objects."""
    limits = {"age_s": 1e12, "bytes_max": 1 << 60}
    merger = Merger(checkpointer, segments_min=2, block_bytes=block_bytes)
    keeper = ArchiveKeeper(checkpointer.catalog, checkpointer.objects, merge_min=2, **limits)
    for work in (merger.step, keeper.merge):
        for _ in range(30):
            if not work():
                break
        else:
            raise AssertionError("merging does not come to an end")
    merger.collect()
    keeper.collect()


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 250), st.sampled_from((40, 300, 131072)), st.sampled_from((0, 1 << 12, 1 << 19)))
def test_checkpoints_and_merges_keep_what_the_journal_says(seed, length, block_bytes, chunk_bytes):
    journal = told(seed, length)
    chance = random.Random(seed)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        ends = written(root, journal, chance)
        checkpointer = Checkpointer(DataDir(root), QuickFiles(), block_bytes=block_bytes)
        patch.setattr(checkpoint, "_FEW", chance.choice((1, 64)))
        patch.setattr(checkpoint, "_STEP_BYTES", chance.choice((1, 100, 1 << 20)))
        patch.setattr(checkpoint, "_SEGMENT_BYTES_MAX", chance.choice((100, 1000, 1 << 20)))
        for end in sorted({*chance.sample(ends, min(len(ends), chance.choice((0, 2, 20)))), *ends[-1:]}):
            assert checkpointer.advance(end) == end
            if chance.random() < 0.3:
                checkpointer.rest()  # as another one that goes on: it knows no more than is on disk
        disk = Disk(checkpointer, root)
        checked(journal, disk)
        patch.setattr(archiving, "CHUNK_BYTES", chunk_bytes)  # larger chunks are copied as they are
        merge_all(checkpointer, block_bytes)
        checked(journal, disk)
        disk.catalog.close()
        checkpointer.close()
