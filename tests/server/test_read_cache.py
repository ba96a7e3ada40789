"""The cache of read answers: what it keeps, and for how long."""

from __future__ import annotations

from tests.engine.world import Shelf, World

from millstream.engine.machine import Machine
from millstream.engine.state import Bucket, Stream
from millstream.model.records import Lease
from millstream.node.sightings import Sightings
from millstream.server.read_cache import ReadAnswer, ReadCache

SIZE = 1000
ANSWER = ReadAnswer(b"lines", b"content", b"etag", [b"x" * 600, memoryview(b"x" * 400)], SIZE)


def made(bytes_max: int = 1 << 20) -> tuple[ReadCache, Machine, Stream]:
    machine = Machine(Shelf(), incarnation=1, time=World())
    machine.buckets["b"] = Bucket("b", 0)
    stream = machine.streams["b/s"] = Stream(1, "b/s", "text/plain", 0, 0, tail=SIZE)
    return ReadCache(Sightings(machine), bytes_max), machine, stream


def keep(cache: ReadCache, target: bytes, stream: Stream) -> None:
    cache.put(target, stream, ANSWER)
    cache.put(target, stream, ANSWER)


def test_an_answer_is_kept_when_it_is_asked_for_the_second_time():
    cache, _, stream = made()
    cache.put(b"/s", stream, ANSWER)
    assert cache.get(b"/s") is None
    cache.put(b"/s", stream, ANSWER)
    kept = cache.get(b"/s")
    assert kept is not None
    assert kept.pieces == [b"x" * SIZE]  # its own bytes: a view would keep a whole block


def test_a_whole_answer_is_made_anew_when_its_first_lines_are_others():
    cache, _, stream = made()
    assert cache.whole(b"/s", b"Date: 1\r\n") is None
    keep(cache, b"/s", stream)
    lines = b"Date: 1\r\n"
    first = cache.whole(b"/s", lines)
    assert first == lines + b"linescontentETag: etag\r\nContent-Length: 1000\r\n\r\n" + b"x" * SIZE
    assert cache.whole(b"/s", lines) is first
    assert cache.whole(b"/s", b"Date: 2\r\n") == first.replace(b"Date: 1", b"Date: 2")
    assert cache.hits == 3
    stream.changed += 1
    assert cache.whole(b"/s", lines) is None


def test_a_large_answer_is_not_made_in_one_piece():
    cache, _, stream = made(bytes_max=1 << 30)
    body = b"x" * (64 << 10)
    for pieces, size in (([body], len(body)), ([body, b"y"], len(body) + 1)):
        large = ReadAnswer(b"lines", b"content", b"etag", pieces, size)
        target = b"/%d" % size
        cache.put(target, stream, large)
        cache.put(target, stream, large)
        assert cache.get(target) is not None
        assert (cache.whole(target, b"") is not None) == (size <= 64 << 10)


def test_it_marks_the_stream_as_used():
    cache, machine, stream = made()
    keep(cache, b"/s", stream)
    machine.coarse_s = 77
    cache.get(b"/s")
    assert stream.used == 77


def test_a_stream_that_left_memory_and_came_back_is_looked_up_again():
    """The one that left does not see what is appended to the one that came."""
    cache, machine, stream = made()
    keep(cache, b"/s", stream)
    machine.streams["b/s"] = Stream(1, "b/s", "text/plain", 0, 0, tail=SIZE)
    assert cache.get(b"/s") is None


def test_a_lease_is_never_kept():
    cache, _, stream = made()
    stream.lease = Lease(100, None, 0)
    keep(cache, b"/s", stream)
    assert cache.get(b"/s") is None


def test_the_least_recently_asked_go_first_and_the_size_is_bounded():
    cache, _, stream = made(bytes_max=64_000)
    for number in range(50):
        keep(cache, b"/%d" % number, stream)
        assert cache.get(b"/0") is not None
    assert cache.bytes <= 64_000
    assert cache.bytes == sum(kept.weight for kept in cache._kept.values())
    assert cache.get(b"/1") is None
    assert cache.get(b"/49") is not None


def test_an_answer_that_would_push_out_all_others_is_not_kept():
    cache, _, stream = made(bytes_max=31 * SIZE)
    keep(cache, b"/s", stream)
    assert cache.get(b"/s") is None


def test_what_clients_make_up_takes_little_memory():
    cache, _, stream = made()
    keep(cache, b"/s?" + b"x" * 2000, stream)
    assert cache.get(b"/s?" + b"x" * 2000) is None
    for number in range(10_000):
        cache.put(b"/s?%d" % number, stream, ANSWER)
    assert len(cache._asked) <= 4096


def test_an_answer_in_an_encoding_is_kept_beside_the_plain_one_and_goes_with_it():
    cache, _, stream = made()
    packed = ReadAnswer(b"lines", b"content", b"W/etag", [b"zzz"], 3)
    cache.put_variant(b"/s", b"gzip", ANSWER, packed)
    assert cache.get_variant(b"/s", b"gzip") is None, "there is nothing that it would be a variant of"
    keep(cache, b"/s", stream)
    plain = cache.get(b"/s")
    assert plain is not None
    cache.put_variant(b"/s", b"gzip", ANSWER, packed)
    assert cache.get_variant(b"/s", b"gzip") is None, "it was made of another answer"
    cache.put_variant(b"/s", b"gzip", plain, packed)
    assert cache.get_variant(b"/s", b"gzip") is packed
    assert cache.get_variant(b"/s", b"zstd") is None
    stream.changed += 1
    assert cache.get_variant(b"/s", b"gzip") is None
    assert cache.get(b"/s") is None
    assert cache.bytes == 0
