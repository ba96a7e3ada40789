"""Large bodies: journaled in parts, visible as a whole, whatever happens in between."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.storage.faulty_files import FaultyFiles

from millstream.model.commands import Body, Create
from millstream.model.errors import NotFound, OutcomeUnknown, StreamClosed, Unavailable
from millstream.model.replies import Outcome

from .rig import BYTES, JSON, Rig, producer, until

LARGE = bytes(range(256)) * 4  # sixteen parts of 64 bytes


async def staged(rig, payload=LARGE):
    return await rig.node.writer.stage(payload)


def sealing(upload, payload=LARGE):
    return Body(b"", [len(payload)], None, upload)


async def test_a_body_in_parts_reads_as_one(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"<")
        receipt = await rig.append_large("box/a", LARGE)
        assert receipt.tail == 1 + len(LARGE)
        await rig.append("box/a", b">")
        assert await rig.content("box/a") == b"<" + LARGE + b">"
        assert rig.node.machine.uploads == {}
        assert len(rig.stream("box/a").hot) == 3


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 129, 5000])
async def test_parts_of_any_size(tmp_path, size):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        payload = bytes(number % 251 for number in range(size))
        await rig.append_large("box/a", payload)
        await rig.crash()
        assert await rig.content("box/a") == payload
        rig.checkpoint()
        assert await rig.content("box/a") == payload


async def test_a_json_batch_in_parts_keeps_its_messages(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/j", JSON)
        messages = [b'"%d"' % number for number in range(100)]
        await rig.append_large("box/j", messages)
        assert await rig.messages("box/j", 0, 50) == messages
        rig.checkpoint()
        assert await rig.messages("box/j", 0, 50) == messages


async def test_other_appends_pass_between_the_parts(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        await rig.create("box/b")
        large = asyncio.ensure_future(rig.append_large("box/a", LARGE))
        small = 0
        while not large.done():
            await rig.append("box/b", b"x")
            small += 1
        assert small > 5
        assert await rig.content("box/a") == LARGE


async def test_two_uploads_at_once_do_not_mix(tmp_path):
    async with Rig(tmp_path) as rig:
        bodies = {f"box/{number}": bytes([65 + number]) * 1000 for number in range(5)}
        for key in bodies:
            await rig.create(key)
        await asyncio.gather(*(rig.append_large(key, body) for key, body in bodies.items()))
        for _ in range(2):
            for key, body in bodies.items():
                assert await rig.content(key) == body
            await rig.crash()


async def test_parts_without_the_append_that_names_them_are_never_seen_and_dropped_at_the_next_start(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"before")
        await staged(rig)
        assert await rig.content("box/a") == b"before"
        await rig.crash()
        await rig.append("box/a", b" after")
        assert rig.node.machine.uploads == {}
        assert await rig.content("box/a") == b"before after"
        rig.checkpoint()
        assert len(rig.journal_files()) == 1
        await rig.crash()
        assert rig.node.machine.uploads == {}


@pytest.mark.parametrize("parts", range(0, 17, 3))
async def test_a_crash_after_any_part_leaves_nothing_of_the_body(tmp_path, parts):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"before")
        committed = rig.node.writer.committed_sequence
        upload = asyncio.ensure_future(staged(rig))
        await until(lambda: rig.node.writer.committed_sequence >= committed + min(parts, 16))
        await rig.crash()
        upload.cancel()
        assert await rig.content("box/a") == b"before"
        rig.checkpoint()
        await rig.append_large("box/a", LARGE)
        assert await rig.content("box/a") == b"before" + LARGE
        assert rig.node.machine.uploads == {}


@pytest.mark.parametrize("crash", [False, True])
async def test_an_upload_that_spans_checkpoints_keeps_its_parts_in_the_journal(tmp_path, crash):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        upload = asyncio.ensure_future(staged(rig))
        for _ in range(4):
            await rig.append("box/a", b"x" * 300)
            rig.checkpoint()
        number = await upload
        for _ in range(10):  # roll files that hold nothing but what the catalog has
            await rig.append("box/a", b"y" * 900)
        rig.checkpoint()
        assert int(rig.journal_files()[0].stem) <= number
        await rig.append("box/a", sealing(number))
        expected = b"x" * 1200 + b"y" * 9000 + LARGE
        assert await rig.content("box/a") == expected
        if crash:
            await rig.crash()
            assert await rig.content("box/a") == expected
        rig.checkpoint()
        assert rig.stream("box/a").hot is None
        assert await rig.content("box/a") == expected
        assert len(rig.journal_files()) == 1, "nothing holds the journal any more"


async def test_an_upload_sealed_before_the_crash_and_checkpointed_after_it(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        number = await staged(rig)
        rig.checkpoint()
        await rig.append("box/a", sealing(number))
        other = await staged(rig, b"never sealed" * 20)
        assert other > number
        rig.checkpoint()
        await rig.crash()
        assert await rig.content("box/a") == LARGE
        rig.checkpoint()
        await rig.crash()
        await rig.append("box/a", b".")
        assert await rig.content("box/a") == LARGE + b"."
        assert rig.node.machine.uploads == {}


async def test_a_refused_append_drops_its_parts(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/closed", closed=True)
        with pytest.raises(StreamClosed):
            await rig.append_large("box/closed", LARGE)
        with pytest.raises(NotFound):
            await rig.append_large("box/none", LARGE)
        await rig.create("box/a", BYTES, b"x", producer=producer("p", 0))
        duplicate = await rig.append_large("box/a", LARGE, producer=producer("p", 0))
        assert duplicate.outcome is Outcome.DUPLICATE
        await rig.append("box/a", b"y")
        assert rig.node.machine.uploads == {}
        rig.checkpoint()
        assert len(rig.journal_files()) == 1


async def test_an_upload_that_is_refused_half_way_leaves_no_parts_behind(tmp_path):
    """Writes stop and come back, as they do when the disk is nearly full: forgotten parts would hold memory, and hold
    the journal at a time when its space is needed most, until a restart."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        upload = asyncio.ensure_future(staged(rig))
        await until(lambda: rig.node.machine.uploads)
        rig.node.writer.refuse(Unavailable("the disk is nearly full"))
        with pytest.raises(Unavailable):
            await upload
        rig.node.writer.refuse(None)
        for _ in range(20):
            await rig.append("box/a", b"x" * 500)
        rig.checkpoint()
        assert rig.node.machine.uploads == {}
        assert len(rig.journal_files()) == 1


async def test_a_journal_that_fails_between_parts_is_told_to_the_uploader(tmp_path):
    files = FaultyFiles(tmp_path)
    rig = Rig(tmp_path, files=files)
    rig.open()
    await rig.create("box/a")
    files.fail("sync", errno.EIO, after=5)
    with pytest.raises(OutcomeUnknown):
        await staged(rig)
    with pytest.raises(Unavailable):
        await staged(rig)
    await rig.node.close()
    files.heal()
    async with Rig(tmp_path) as again:
        assert await again.content("box/a") == b""


async def test_a_new_stream_may_begin_with_a_large_body(tmp_path):
    async with Rig(tmp_path) as rig:
        number = await staged(rig)
        await rig.submit(Create("box/a", BYTES, body=sealing(number), closed=True))
        for _ in range(2):
            assert await rig.content("box/a") == LARGE
            assert rig.stream("box/a").closed
            await rig.crash()
        rig.checkpoint()
        assert await rig.content("box/a") == LARGE


async def test_a_restart_reads_a_batch_that_holds_the_end_of_one_upload_and_the_start_of_another(tmp_path):
    """The journal is read again from the oldest open upload on: from the batch that holds its first part. What stands
    before that part in the batch belongs to an upload that is long complete."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        later = []
        earlier = rig.node.writer.stage(b"E" * 128)
        # Answered together with the first part of `earlier`: its second part and the first of `later` share a batch.
        rig.node.submit(rig.append_command("box/a", b"<"), lambda _: later.append(rig.node.writer.stage(b"L" * 640)))
        await rig.append("box/a", sealing(await earlier, b"E" * 128))
        rig.checkpoint()
        await rig.crash()
        assert await rig.content("box/a") == b"<" + b"E" * 128
        await rig.append("box/a", b">")
        assert rig.node.machine.uploads == {}
