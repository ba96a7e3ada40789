"""Checkpoints: the journal becomes segments and catalog rows, and a checkpoint that is killed is as good as none."""

from __future__ import annotations

import contextlib
import errno
import sqlite3

import msgspec
import pytest
from tests.storage.faulty_files import FaultyFiles

from millstream.model.errors import NotFound, SequenceGap, StorageError
from millstream.model.records import StreamRecord
from millstream.model.replies import Outcome
from millstream.node import checkpoint as checkpoint_module
from millstream.storage.catalog import CatalogReader
from millstream.storage.data_dir import DataDir
from millstream.storage.segments.block import decode_block
from millstream.storage.segments.segment import segment_name

from .rig import BYTES, JSON, Rig, producer


async def fill(rig, turns=20):
    """Two streams and a few streams that come and go; what each must hold."""
    await rig.create("box/a", BYTES)
    await rig.create("box/j", JSON)
    for turn in range(turns):
        await rig.append("box/a", b"<%d>" % turn * 20)
        await rig.append("box/j", [b"%d" % turn, b'"%d"' % turn], producer=producer("p", turn))
        if turn % 5 == 0:
            await rig.create(f"box/short-{turn}", BYTES, b"lived shortly")
        if turn % 5 == 3:
            await rig.delete(f"box/short-{turn - 3}")


async def check(rig, turns=20):
    assert await rig.content("box/a") == b"".join(b"<%d>" % turn * 20 for turn in range(turns))
    assert await rig.messages("box/j") == [text for turn in range(turns) for text in (b"%d" % turn, b'"%d"' % turn)]
    with pytest.raises(NotFound):
        rig.stream("box/short-0")
    duplicate = await rig.append("box/j", [b"0"], producer=producer("p", turns - 1))
    assert duplicate.outcome is Outcome.DUPLICATE
    with pytest.raises(SequenceGap):
        await rig.append("box/j", [b"0"], producer=producer("p", turns + 1))


async def test_a_checkpoint_frees_memory_and_the_journal(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        assert rig.node.machine.hot_bytes > 0
        assert len(rig.journal_files()) > 1
        rig.checkpoint()
        assert rig.node.machine.hot_bytes == 0
        assert len(rig.journal_files()) == 1
        assert all(stream.hot is None for stream in rig.node.machine.streams.values())
        await check(rig)
        await rig.crash()
        assert rig.node.replayed == 0
        await check(rig)


async def test_a_checkpoint_with_nothing_new_writes_nothing(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        for _ in range(3):
            rig.checkpoint()
        assert len(rig.segments()) == 1


async def test_facts_without_payload_need_no_segment(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES)
        await rig.close_stream("box/a", producer=producer("p", 0))
        await rig.create("box/marks", BYTES, b"", producer=producer("q", 0), stream_seq="s")
        rig.checkpoint()
        assert rig.segments() == []
        await rig.crash()
        rig.evict()
        assert rig.stream("box/a").closed
        assert rig.stream("box/marks").writers.stream_seq == "s"


async def test_a_stream_that_came_and_went_leaves_no_block(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x" * 500)
        await rig.delete("box/a")
        rig.checkpoint()
        assert rig.segments() == []
        assert rig.node.machine.streams == {}
        assert rig.node.catalog.stream_count() == 0


async def test_blocks_carry_times_ids_and_positions(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/j", JSON, [b"1", b"22"])
        await rig.append("box/j", [b"333"])
        hot = list(rig.stream("box/j").hot)
        number = rig.stream("box/j").number
        rig.checkpoint()
        (extent,) = rig.node.catalog.extents(number, 0, 6, 10)
        block = decode_block(rig.node.objects.get_range(segment_name(extent.segment), extent.at, extent.size), number)
        assert list(block.lengths) == [1, 2, 3]
        assert block.times_ms == [hot[0].at_ms, hot[0].at_ms, hot[1].at_ms]
        assert block.sequences == [hot[0].sequence, hot[0].sequence, hot[1].sequence]
        ids = list(zip(block.ids_ms, block.id_seqs, strict=True))
        assert ids == [(hot[0].id_ms, 0), (hot[0].id_ms, 1), (hot[1].id_ms, hot[1].id_seq)]
        assert ids == sorted(set(ids))


async def test_buckets_count_their_streams(tmp_path):
    async with Rig(tmp_path) as rig:
        for key in ("box/a", "box/b", "other/c"):
            await rig.create(key)
        await rig.delete("box/a")
        rig.checkpoint()
        await rig.create("box/d")
        await rig.delete("other/c")
        for _ in range(2):
            assert rig.node.machine.find_bucket("box").streams == 2
            assert rig.node.machine.find_bucket("other").streams == 0
            await rig.crash()
        rig.checkpoint()
        assert rig.node.catalog.bucket("box").streams == 2
        assert rig.node.catalog.bucket("other").streams == 0


async def test_a_checkpoint_in_many_stretches_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "_STRETCH_BYTES_MAX", 300)
    async with Rig(tmp_path) as rig:
        await fill(rig)
        rig.checkpoint()
        assert len(rig.segments()) > 3
        await check(rig)
        rig.merge()
        await check(rig)


async def test_appends_go_on_between_the_cut_and_the_report(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        through = rig.node.writer.committed_sequence
        streams, _ = rig.node.machine.cut(through)
        await rig.append("box/a", b"in between")
        checkpointer = rig.checkpointer()
        checkpointer.advance(through)
        checkpointer.close()
        await rig.append("box/a", b" and after")
        for stream in streams:
            rig.node.machine.checkpointed(stream, through)
        assert rig.node.machine.hot_bytes == 20
        assert (await rig.content("box/a")).endswith(b"<19>in between and after")
        rig.checkpoint()
        assert rig.node.machine.hot_bytes == 0
        assert (await rig.content("box/a")).endswith(b"<19>in between and after")


CALLS = ["create", "pwrite", "sync", "link", "unlink", "sync_directory"]


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("call", CALLS)
async def test_a_checkpoint_that_fails_at_any_call_is_made_good_by_the_next(tmp_path, call, after):
    files = FaultyFiles(tmp_path)
    async with Rig(tmp_path, files=files) as rig:
        await fill(rig, 10)
        rig.checkpoint()
        for turn in range(10, 20):
            await rig.append("box/a", b"<%d>" % turn * 20)
            await rig.append("box/j", [b"%d" % turn, b'"%d"' % turn], producer=producer("p", turn))
        files.fail(call, errno.EIO, after)
        with contextlib.suppress(OSError), contextlib.closing(rig.checkpointer()) as checkpointer:
            checkpointer.advance(rig.node.writer.committed_sequence)
        files.heal()
        await check(rig)
        await rig.crash()
        await check(rig)
        rig.checkpoint()
        await check(rig)
        known = {segment_name(number).rpartition("/")[2] for number in rig.node.catalog.segment_numbers()}
        assert set(rig.segments()) == known, "no orphans, nothing missing"


async def test_a_checkpoint_killed_before_it_is_committed_leaves_an_orphan_that_the_next_open_removes(
    tmp_path, monkeypatch
):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        checkpointer = rig.checkpointer()

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(checkpointer.catalog, "add_segment", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.advance(rig.node.writer.committed_sequence)
        checkpointer.close()
        assert rig.segments() == ["000000000001"]
        assert rig.node.catalog.segment_numbers() == []
        await rig.crash()
        assert rig.segments() == []
        await check(rig)
        rig.checkpoint()
        await check(rig)


async def test_a_checkpoint_killed_before_it_trimmed_trims_the_next_time(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        checkpointer = rig.checkpointer()
        monkeypatch.setattr(checkpointer, "trim", lambda: 0)
        checkpointer.advance(rig.node.writer.committed_sequence)
        checkpointer.close()
        assert len(rig.journal_files()) > 1
        await rig.crash()
        await check(rig)
        await rig.append("box/a", b"<20>" * 20)
        rig.checkpoint()
        assert len(rig.journal_files()) == 1


async def test_a_reader_of_the_catalog_never_sees_half_a_checkpoint(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig, 5)
        rig.checkpoint()
        outside = CatalogReader(tmp_path / "catalog.db")
        applied = outside.state("applied")
        assert applied == rig.node.writer.committed_sequence
        assert outside.stream("box/a").tail == rig.stream("box/a").tail
        outside.close()


async def test_the_journal_may_not_end_before_what_is_asked_for(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig)
        checkpointer = rig.checkpointer()
        with pytest.raises(StorageError, match="The journal ends before sequence 10000"):
            checkpointer.advance(10_000)
        checkpointer.close()
        await check(rig)


# -- what is saved of a stream -------------------------------------------------------------------------------


def saved_tails(rig):
    """What the rows of the streams themselves say, without their blocks."""
    connection = sqlite3.connect(DataDir(rig.root).catalog)
    rows = connection.execute("SELECT key, record FROM streams").fetchall()
    connection.close()
    return {key: msgspec.msgpack.decode(record, type=StreamRecord).tail for key, record in rows}


async def test_plain_appends_change_no_record_but_are_known_after_a_restart(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"first")
        rig.checkpoint()
        for _ in range(3):
            await rig.append("box/a", b"and more")
            rig.checkpoint()
        before = msgspec.structs.asdict(rig.stream("box/a"))
        assert saved_tails(rig) == {"box/a": 5}
        await rig.crash()
        assert rig.node.replayed == 0
        after = rig.stream("box/a")
        for field in StreamRecord.__struct_fields__:
            assert getattr(after, field) == before[field], field
        await rig.append("box/a", b"!")
        assert await rig.content("box/a") == b"first" + b"and more" * 3 + b"!"


@pytest.mark.parametrize(
    "more",
    [{"stream_seq": "2"}, {"producer": producer("p", 0)}, {"closes": True}],
    ids=["stream-seq", "producer", "close"],
)
async def test_appends_that_say_more_are_saved_with_the_record(tmp_path, more):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"first")
        rig.checkpoint()
        await rig.append("box/a", b"and more", **more)
        rig.checkpoint()
        assert saved_tails(rig) == {"box/a": 13}


async def test_appends_to_a_stream_that_expires_are_saved_with_the_record(tmp_path):
    """They renew it, and the row says when it is over."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"first", ttl_s=1000)
        rig.checkpoint()
        await rig.append("box/a", b"and more")
        rig.checkpoint()
        assert saved_tails(rig) == {"box/a": 13}


async def test_what_a_checkpointer_knows_is_not_trusted_after_a_failed_commit(tmp_path):
    """Records are changed before they are committed."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"first")
        with contextlib.closing(rig.checkpointer()) as checkpointer:
            checkpointer.advance(rig.node.writer.committed_sequence)
            await rig.append("box/a", b"second")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpointer.objects, "put", refusing)
                with pytest.raises(OSError, match="full"):
                    checkpointer.advance(rig.node.writer.committed_sequence)
            checkpointer.advance(rig.node.writer.committed_sequence)
        await rig.crash()
        assert await rig.content("box/a") == b"firstsecond"


def refusing(name, pieces):
    raise OSError("the disk is full")
