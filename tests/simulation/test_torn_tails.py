"""A small history of every kind of fact, torn and flipped at every byte of its journal.

A torn end is cut: what is found is the state after the last batch that is whole. A flipped bit is refused, or taken for
a torn end where it lies in the last batch; no other state is ever served.
"""

from __future__ import annotations

import copy
import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from tests.engine.world import committed

from millstream.engine.state import Hot, StoredRecord
from millstream.model.commands import (
    Addition,
    Append,
    Body,
    ChangeBucket,
    Command,
    CommitTransaction,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    ForgetTransactions,
    PublishSnapshot,
    Slice,
    Trim,
)
from millstream.model.errors import CorruptData, UnknownFormat
from millstream.model.facts import BucketSettings, Producer, Stored
from millstream.storage.journal.record import HEADER_BYTES

from .disk import SimulatedDisk
from .loop import SimulatedLoop, simulated
from .node import DIRECTORY, SimulatedNode

JSON, TEXT = "application/json", "text/plain"
SIZES = {"file_bytes": 4096, "batch_bytes_max": 1 << 20, "part_bytes": 20}
DEAL = [Addition("t", [Slice(Stored(9, 16, 77), [3, 11])]), Addition("u", [Slice(Stored(9, 30, 78), [6])])]
STORY: list[Command] = [
    CreateBucket("shop", BucketSettings(ttl_s=60)),
    Create("shop/a", TEXT, body=Body(b"first")),
    Append("shop/a", TEXT, Body(b"by a producer"), producer=Producer("p", 0, 0)),
    Create("box/j", JSON, ttl_s=5),
    Append("box/j", JSON, Body(b'{"a":1}22"c"', [7, 2, 3])),
    ChangeBucket("shop", BucketSettings()),
    Append("shop/a", TEXT, Body(b"again"), producer=Producer("p", 0, 1), stream_seq="a"),
    PublishSnapshot("shop/a", 5, TEXT, 6, b"d" * 16, b"folded"),
    Trim("shop/a", 18),
    PublishSnapshot("shop/a", 18, TEXT, 3, b"e" * 16, b"all", trims=False),
    Append("shop/a", TEXT, Body(b"and closed"), True, producer=Producer("q", 3, 0)),
    CommitTransaction("shop", "etl", 1, DEAL, 3, 20, 9, True, JSON),
    CommitTransaction("shop", "etl", 2, []),
    CommitTransaction("shop", "other", 1, DEAL[:1], 2, 14, 9),
    ForgetTransactions("shop", "etl"),
    Delete("box/j"),
    Create("box/j", TEXT),
    CreateBucket("spare"),
    DeleteBucket("spare"),
    Append("box/j", None, Body(), True),
]  # fmt: skip


class Mark(NamedTuple):
    """Where a batch ends in the journal's only file, and what the node holds then."""

    end: int
    state: dict[str, object]


def durable_state(node: SimulatedNode) -> dict[str, object]:
    """A part of an upload may have been decided about and not be durable yet; it is no part of this."""
    found = committed(node.machine)
    hot = {key: list(map(_described, stream.hot or ())) for key, stream in node.machine.streams.items()}
    return {**copy.deepcopy({**found, "hot": hot}), "next": node.writer.committed_sequence + 1}


def _described(record: Hot) -> Hot:
    """What lies in an object is told by where: the object itself is no part of the journal."""
    return replace(record, payloads=None) if isinstance(record, StoredRecord) else record


class Told:
    """The history, told once: its bytes, and the state after each batch."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(random.Random(1))
        disk = SimulatedDisk()
        with simulated(self.loop):
            node = SimulatedNode(disk, **SIZES)
            self.marks = [Mark(node.journal._at, durable_state(node))]
            for command in STORY:
                node.submit(command, self._expect_success)
                self._settle(node)
            node.writer.stage(b"a body in several parts, of which none is large").add_done_callback(
                lambda staged: node.submit(Create("box/up", TEXT), self._expect_success)
            )
            self._settle(node)
        (self.name,) = disk.list_directory(DIRECTORY)
        self.content = disk.read(DIRECTORY / self.name)

    def _expect_success(self, answer: object) -> None:
        assert not isinstance(answer, Exception), answer

    def _settle(self, node: SimulatedNode) -> None:
        """Until nothing is in flight, noting each commit."""
        while True:
            commits = node.writer.commits
            self.loop.run(stop=lambda before=commits: node.writer.commits > before)
            if node.writer.commits == commits:
                return
            assert node.writer._flying is None, "one batch at a time, or the end of this one is not known"
            self.marks.append(Mark(node.journal._at, durable_state(node)))

    def found(self, content: bytes) -> tuple[dict[str, object], SimulatedDisk]:
        """What a node makes of a journal of these bytes."""
        disk = SimulatedDisk()
        disk.replace(DIRECTORY / self.name, content)
        with simulated(self.loop):
            node = SimulatedNode(disk, **SIZES)
            state = durable_state(node)
            self.loop.forget()
        return state, disk


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


def zeroed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes(len(content) - at)


def truncated(content: bytes, at: int) -> bytes:
    return content[:at]


def garbled(content: bytes, at: int) -> bytes:
    return content[:at] + random.Random(at).randbytes(min(40, len(content) - at)) + bytes(len(content) - at - 40)


def test_the_history_is_long_enough(told: Told) -> None:
    assert len(told.marks) >= len(STORY)
    assert told.marks[-1].end > 1000
    assert [mark.end for mark in told.marks] == sorted({mark.end for mark in told.marks})
    assert told.found(told.content)[0] == told.marks[-1].state


@pytest.mark.parametrize("tear", [zeroed, truncated, garbled])
def test_a_tail_torn_at_every_byte_is_cut(told: Told, tear) -> None:
    for at in range(HEADER_BYTES, told.marks[-1].end + 1):
        whole = [mark for mark in told.marks if mark.end <= at][-1]
        state, disk = told.found(tear(told.content, at))
        assert state == whole.state, f"torn at {at}"
        kept = disk.read(DIRECTORY / told.name)
        assert kept.startswith(told.content[: whole.end]), f"torn at {at}"
        assert not any(kept[whole.end :]), f"torn at {at}: nothing of the torn batch may stay"


def test_a_bit_flipped_at_every_byte_never_makes_another_state(told: Told) -> None:
    *_, before_the_last, last = told.marks
    refused = 0
    for at in range(last.end + 100):
        flipped = bytearray(told.content)
        flipped[at] ^= 1 << (at % 8)
        try:
            state, _ = told.found(bytes(flipped))
        except (CorruptData, UnknownFormat):
            refused += 1
            assert at < last.end, f"a bit flipped at {at}, behind the end, refused the start"
            continue
        if at >= last.end or 44 <= at < HEADER_BYTES:  # behind the end; the zeros of the header
            assert state == last.state, f"flipped at {at}"
        else:
            assert at >= before_the_last.end, f"a bit flipped at {at} went unnoticed"
            assert state == before_the_last.state, f"flipped at {at}"
    assert refused > 0.8 * before_the_last.end
