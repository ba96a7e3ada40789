"""Feed, bulk reads and the archive below them: the same answers from memory, from the archive, after merges, crashes
and restarts; what retention drops; what leases hold."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from millstream.model.commands import Body
from millstream.model.errors import BadRequest, CorruptData, NotFound, PositionGone, TooMany, Unavailable
from millstream.model.positions import Position
from millstream.node import archiving
from millstream.node import leases as leases_module
from millstream.node.archiving import choose
from millstream.node.bulk import Bounds
from millstream.node.leases import Held, LeaseBook, held_now
from millstream.storage.archive import object as archive_object
from millstream.storage.archive.chunk import encode_chunk
from millstream.storage.archive.rows import selected
from millstream.storage.catalog.archives import ArchiveUse

from .feed_rig import ROOMY, FeedRig, filled
from .rig import JSON, producer

# --- the same from everywhere


class Story:
    """Random changes in two buckets, and what a feed and a bulk read must say about them."""

    def __init__(self, rig, seed):
        self.rig = rig
        self.chance = random.Random(seed)
        self.live = {}  # key: [number, tail, earliest]
        self.entries = {"box": [], "other": []}
        self.messages = {"box": [], "other": []}  # number, name, offset, bytes

    def note(self, key, kind, first, following):
        bucket, name = key.split("/")
        self.entries[bucket].append((name, kind, first, following))

    async def step(self):
        chance = self.chance
        key = f"{chance.choice(['box', 'box', 'other'])}/{chance.choice('abc')}"
        if key not in self.live:
            receipt = await self.rig.create(key, JSON if key.endswith("c") else "text/plain")
            self.live[key] = [receipt.number, 0, 0]
            self.note(key, "created", 0, 0)
            return
        action = chance.randrange(12)
        stream = self.live[key]
        if action == 0:
            await self.rig.delete(key)
            self.note(key, "deleted", stream[1], stream[1])
            del self.live[key]
        elif action == 1 and stream[1] > stream[2]:
            offset = chance.choice([o for n, _, o, _ in self.messages[key.split("/")[0]] if n == stream[0]])
            if offset > stream[2]:
                await self.rig.trim(key, offset)
                stream[2] = offset
                self.note(key, "trimmed", 0, offset)
        elif action == 2 and stream[1] > stream[2]:
            await self.rig.snapshot(key, stream[1], b"state")
            stream[2] = stream[1]
            self.note(key, "snapshot", stream[1], stream[1])
        else:
            await self.append(key, stream, large=action == 3)

    async def append(self, key, stream, large):
        chance, bucket = self.chance, key.split("/")[0]
        messages = [b'"%d"' % chance.randrange(1000) for _ in range(chance.randrange(1, 4))]
        if key.endswith("c"):
            await (self.rig.append_large if large else self.rig.append)(key, messages)
        elif large:
            messages = [chance.randbytes(300)]
            upload = await self.rig.node.writer.stage(messages[0])
            await self.rig.append(key, Body(b"", [len(messages[0])], None, upload), "text/plain")
        else:
            messages = [b"".join(messages)]
            await self.rig.append(key, messages[0], "text/plain")
        first = stream[1]
        for message in messages:
            self.messages[bucket].append((stream[0], key.split("/")[1], stream[1], message))
            stream[1] += len(message)
        self.note(key, "appended", first, stream[1])

    def expected_rows(self, bucket, prefix=""):
        kept = {stream[0]: stream[2] for stream in self.live.values()}
        rows = []
        for number, name, offset, message in self.messages[bucket]:
            is_kept = number in kept and offset >= kept[number]
            if name.startswith(prefix):
                rows.append((name, offset, "message", message) if is_kept else (name, offset, "gap", None))
        return rows

    async def check(self):
        rig = self.rig
        for bucket in ("box", "other"):
            found = await rig.entries(bucket, limit=self.chance.choice([1, 2, 7, 1000]))
            assert [entry[2:6] for entry in found] == self.entries[bucket]
            with_data = await rig.entries(bucket, with_data=True, bytes_max=self.chance.choice([1, 100, 1 << 30]))
            told = [entry for entry in with_data if entry.messages is not None]
            kept = [row for row in self.expected_rows(bucket) if row[2] == "message"]
            assert [message for entry in told for message in entry.messages] == [row[3] for row in kept]
            prefix = self.chance.choice(["", "a"])
            rows, plan = await rig.rows(bucket, prefix=prefix)
            assert plan.until == rig.node.feed.now
            named = [(row.stream, row.offset, row.kind, row.value) for row in rows if row.kind != "snapshot"]
            assert named == self.expected_rows(bucket, prefix)
            assert [row.sequence for row in rows] == sorted(row.sequence for row in rows)
            await self.check_parts(bucket, rows, prefix)

    async def check_parts(self, bucket, rows, prefix):
        """Read in bounded parts, the rows are the same."""
        parts, after = [], 0
        bounds = self.chance.choice([Bounds(None, 5), Bounds(200, None), Bounds(1, 1)])
        while True:
            part, plan = await self.rig.rows(bucket, after, prefix=prefix, bounds=bounds)
            assert plan.until > after or plan.up_to_date
            assert plan.until <= self.rig.node.feed.now
            assert all(after < row.sequence <= plan.until for row in part)
            parts += part
            after = plan.until
            if plan.up_to_date:
                break
        assert parts == rows


@pytest.mark.parametrize("seed", range(5))
async def test_memory_archive_merges_restarts_and_crashes_all_tell_the_same_story(tmp_path, seed):
    async with FeedRig(tmp_path, ROOMY) as rig:
        story = Story(rig, seed)
        for _ in range(12):
            for _ in range(story.chance.randrange(1, 15)):
                await story.step()
            happening = story.chance.randrange(6)
            if happening == 0:
                await rig.restart()
            elif happening == 1:
                await rig.crash()
            elif happening == 2:
                rig.checkpoint()
                rig.merge_archive()
                rig.merge()
            elif happening < 5:
                rig.checkpoint()
            await story.check()


async def test_a_cut_is_consistent_whatever_is_written_meanwhile(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await filled(rig, 30)
        rig.checkpoint()
        await filled(rig, 30)
        until = rig.node.feed.now
        before, _ = await rig.rows(until=until)
        await filled(rig, 30)
        rig.checkpoint()
        await filled(rig, 5)
        after, _ = await rig.rows(until=until)
        assert after == before
        assert len(before) == 60


async def test_a_plan_stays_readable_over_merges_and_drops(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        for _ in range(4):
            await filled(rig, 10)
            rig.checkpoint()
        plan = await rig.node.bulk.plan("box", "", 0, rig.node.feed.now)
        assert rig.merge_archive()
        rig.merge()
        rig.drop_archive(bytes_max=0)
        rows = [row for r in plan.ranges for part in rig.node.bulk.rows(plan, r) for row in selected(*part)]
        assert len(rows) == 40
        assert len(rig.archives()) >= 4
        rig.node.leases.give_back("box", plan.lease.id)
        rig.drop_archive(bytes_max=0)
        assert rig.archives() == []


# --- retention


async def test_old_archives_go_by_age_and_by_size(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        for _ in range(3):
            await filled(rig, 10)
            rig.checkpoint()
        assert len(rig.archives()) == 3
        assert not rig.drop_archive()
        assert len(await rig.entries()) == 31
        sizes = [path.stat().st_size for path in sorted((rig.root / "objects" / "journal").iterdir())]
        assert rig.drop_archive(bytes_max=sum(sizes[1:]))
        assert len(rig.archives()) == 2
        assert len(await rig.entries()) == 20
        await asyncio.sleep(0.005)
        assert rig.drop_archive(age_s=0.001)
        assert rig.archives() == []
        assert await rig.entries() == []
        await filled(rig, 2)
        assert len(await rig.entries()) == 2


async def test_a_position_before_the_archive_is_gone_and_says_the_way_on(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        start = rig.node.feed.now
        await filled(rig, 10)
        early_ms = rig.node.clock.commit_ms()
        await asyncio.sleep(0.005)
        rig.checkpoint()
        rig.drop_archive(bytes_max=0)
        with pytest.raises(PositionGone, match="messages") as gone:
            await rig.entries(after=start)
        assert gone.value.earliest_position == rig.node.feed.token(rig.node.feed.earliest)
        with pytest.raises(PositionGone):
            await rig.node.feed.sequence_before("box", early_ms - 1000)
        assert rig.node.feed.sequence_of(Position.from_token(gone.value.earliest_position)) == rig.node.feed.earliest


async def test_bulk_reads_fall_back_to_segments(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await filled(rig, 10)
        await rig.create("box/b", JSON, [b"1", b"22", b"333"])
        await rig.create("other/x", payload=b"foreign")
        await rig.create("box/gone", payload=b"gone")
        rig.checkpoint()
        middle = rig.node.feed.now
        await rig.trim("box/a", 12)
        await rig.delete("box/gone")
        await filled(rig, 3)
        rig.checkpoint()
        everything, _ = await rig.rows()
        rig.drop_archive(bytes_max=0)
        await filled(rig, 4)
        rows, plan = await rig.rows()
        assert rows[0][:3] + rows[0][7:] == ("a", 0, 12, "gap", None)
        assert [(row.stream, row.offset, row.value) for row in rows[1:-4]] == [
            (row.stream, row.offset, row.value)
            for row in sorted(everything, key=lambda row: row.stream)
            if row.kind == "message"
        ]
        assert [row.value for row in rows[-4:]] == [b"000", b"001", b"002", b"003"]
        assert {stream.name for stream in plan.streams.values()} == {"a", "b"}
        late, _ = await rig.rows(after=middle)
        assert [row.value for row in late if row.kind == "message"] == [
            b"000",
            b"001",
            b"002",
            b"000",
            b"001",
            b"002",
            b"003",
        ]
        assert [row.kind for row in late].count("gap") == 0
        only_b, _ = await rig.rows(prefix="b")
        assert {row.stream for row in only_b} == {"b"}
        early, _ = await rig.rows(until=middle)
        assert [row.value for row in early if row.stream == "b"] == [b"1", b"22", b"333"]
        assert all(row.sequence <= middle for row in early)


async def test_segments_in_bounded_parts(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        for _ in range(3):
            await filled(rig, 20)
            await filled(rig, 20, "box/b")
            rig.checkpoint()
        rig.drop_archive(bytes_max=0)
        await filled(rig, 5)
        whole, _ = await rig.rows()
        parts, after, steps = [], 0, 0
        while True:
            part, plan = await rig.rows(after=after, bounds=Bounds(None, 10))
            assert plan.until > after
            parts += part
            after, steps = plan.until, steps + 1
            if plan.up_to_date:
                break
        assert sorted(parts) == sorted(whole)
        assert steps > 3


@pytest.mark.parametrize("large_from", [0, 1 << 20], ids=["copied", "rewritten"])
async def test_a_damaged_archive_is_not_merged_and_holds_up_nothing(tmp_path, monkeypatch, large_from):
    monkeypatch.setattr(archiving, "CHUNK_BYTES", large_from)
    async with FeedRig(tmp_path, ROOMY) as rig:
        for _ in range(3):
            await filled(rig, 10)
            rig.checkpoint()
        damaged = rig.root / "objects" / "journal" / rig.archives()[1]
        content = bytearray(damaged.read_bytes())
        content[60] ^= 1
        damaged.write_bytes(content)
        with contextlib.closing(rig.checkpointer()) as checkpointer:
            keeper = rig.keeper(checkpointer)
            with pytest.raises(CorruptData, match=rf"journal/{damaged.name} at byte \d+"):
                keeper.merge()
            assert not keeper.merge()
            assert len(rig.archives()) == 3
            for _ in range(3):
                with pytest.raises(CorruptData):
                    await rig.entries()
                await filled(rig, 10)
                rig.checkpoint()
            assert keeper.merge(), "those behind it are merged"
            assert not keeper.merge()
        assert len(await rig.entries(after=rig.node.feed.now - 10)) == 10
        assert rig.node.damage.count == 1


async def test_large_chunks_are_merged_as_they_are(tmp_path, monkeypatch):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await rig.create("box/a")
        for size in (100_000, 110_000, 200_000):
            await rig.append("box/a", random.randbytes(size))
            rig.checkpoint()
        before, entries = rig.chunks(), await rig.entries()
        encoded = []
        monkeypatch.setattr(
            archive_object, "encode_chunk", lambda *chunk: encoded.append(encode_chunk(*chunk)) or encoded[-1]
        )
        assert rig.merge_archive() == 1
        after = rig.chunks()
        assert [b"".join(chunk.pieces) for chunk in encoded] == after[:1]
        assert after[1:] == before[2:]
        assert await rig.entries() == entries


async def test_a_directory_without_an_archive_has_one_from_now_on(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await filled(rig, 5)
        rig.checkpoint()
        with contextlib.closing(rig.checkpointer()) as checkpointer, checkpointer.catalog.transaction():
            checkpointer.catalog._connection.execute("DELETE FROM archive_chunks")
            checkpointer.catalog._connection.execute("DELETE FROM archives")
            checkpointer.catalog._connection.execute("DELETE FROM state WHERE name LIKE 'archive_from%'")
        await rig.restart()
        assert await rig.entries() == []
        with pytest.raises(PositionGone):
            await rig.entries(after=0)
        await filled(rig, 2)
        assert len(await rig.entries()) == 2
        assert len((await rig.rows())[0]) == 7


def test_which_archives_are_merged():
    def uses(*sizes):
        return [ArchiveUse(index, size, index * 10, index * 10 + 9, 0) for index, size in enumerate(sizes)]

    assert choose(uses(), 2) == []
    assert choose(uses(10, 10), 3) == []
    assert choose(uses(10, 10, 10), 3) == [0, 1, 2]
    assert choose(uses(20 << 20, 10, 10), 2) == [1, 2]
    assert choose(uses(10, 20 << 20, 10), 2) == []
    assert choose(uses(20 << 20, 20 << 20), 2) == []


# --- large bodies, bytes


async def test_a_body_in_parts_is_archived_whole(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await rig.create("box/a")
        await rig.append_large("box/a", b"x" * 500)
        await rig.append("box/a", b"y")
        rig.checkpoint()
        _, large, small = await rig.entries(with_data=True)
        assert (large.messages, small.messages) == ([b"x" * 500], [b"y"])


async def test_an_append_of_no_messages_makes_no_entry(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await rig.create("box/a", producer=producer("p", 0))
        for _ in range(2):
            assert [entry.kind for entry in await rig.entries()] == ["created"]
            assert (await rig.rows())[0] == []
            rig.checkpoint()


async def test_a_bucket_costs_what_its_own_changes_cost(tmp_path):
    """Ten changes among many foreign ones: one small chunk is read, not the others'."""
    async with FeedRig(tmp_path, ROOMY) as rig:
        await filled(rig, 10, "quiet/a")
        await filled(rig, 500, "noisy/a")
        rig.checkpoint()
        chunks = rig.node.catalog.archives.chunks("quiet", 0, 1 << 40, 100)
        assert len(chunks) == 1
        assert chunks[0].size < 1500
        assert len(await rig.entries("quiet")) == 11


# --- leases


def test_leases_hold_objects_expire_and_survive_a_restart(tmp_path):
    now = [1000]
    book = LeaseBook(tmp_path, lease_s=10, now_ms=lambda: now[0])
    assert held_now(tmp_path, 1000).segments_below == 0
    lease = book.take("box")
    assert held_now(tmp_path, now[0]).segments_below > 10**12
    book.settle(lease, Held(5, 7, 1))
    other = book.settle(book.take("box"), Held(3, 9, 2))
    held = held_now(tmp_path, now[0])
    assert held == book.held() == Held(5, 9, 2)
    again = LeaseBook(tmp_path, lease_s=10, now_ms=lambda: now[0])
    now[0] = 9_000
    assert again.renew("box", lease.id).expires_at_ms == 19_000
    now[0] = 12_000
    assert held_now(tmp_path, now[0]).archives_below == 7
    with pytest.raises(NotFound):
        again.renew("box", other.id)
    again.give_back("box", lease.id)
    with pytest.raises(NotFound):
        again.give_back("box", lease.id)
    again.drop(lease)
    assert again.count == 0
    assert held_now(tmp_path, now[0]).segments_below == 0


def test_a_lost_book_of_leases_is_an_empty_one(tmp_path):
    (tmp_path / leases_module.FILE).write_bytes(b"")
    assert held_now(tmp_path, 0).segments_below == 0
    assert LeaseBook(tmp_path, lease_s=10, now_ms=lambda: 0).count == 0


def test_a_lease_that_cannot_be_written_is_none(tmp_path, caplog):
    book = LeaseBook(tmp_path, lease_s=10, now_ms=lambda: 0)
    lease = book.settle(book.take("box"), Held(5, 7))
    in_the_way = tmp_path / f".tmp-{leases_module.FILE}"
    in_the_way.mkdir()
    for change in (
        lambda: book.take("box"),
        lambda: book.settle(lease, Held(1, 1)),
        lambda: book.renew("box", lease.id),
    ):
        with pytest.raises(Unavailable, match="lease"):
            change()
    assert book.count == 1
    assert held_now(tmp_path, 0) == Held(5, 7)
    book.give_back("box", lease.id)  # it ends when its time is over
    assert book.count == 0
    assert "cannot be given back" in caplog.text
    in_the_way.rmdir()
    assert book.renew("box", book.take("box").id)


def test_a_lease_belongs_to_its_bucket(tmp_path):
    book = LeaseBook(tmp_path, lease_s=10, now_ms=lambda: 0)
    lease = book.take("box")
    for change in (book.renew, book.give_back):
        with pytest.raises(NotFound):
            change("other", lease.id)
    assert book.renew("box", lease.id) == lease


def test_leases_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(leases_module, "LEASES_MAX", 2)
    now = [0]
    book = LeaseBook(tmp_path, lease_s=10, now_ms=lambda: now[0])
    book.take("box")
    book.take("box")
    with pytest.raises(TooMany):
        book.take("box")
    now[0] = 20_000
    book.take("box")


async def test_a_failed_plan_leaves_no_lease(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        with pytest.raises(BadRequest):
            await rig.node.bulk.plan("box", "", 5, 1)
        assert rig.node.leases.count == 0
