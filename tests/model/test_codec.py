"""The bytes of facts. What is written today must be readable for as long as there are journals."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.model import facts
from millstream.model.codec import HEADER_BYTES, array_header, decode_facts, encode_facts, encode_into
from millstream.model.errors import CorruptData
from millstream.model.facts import BucketSettings, Fact, Producer, Stored

# One example of every fact and its bytes. A line may only change because a field was added at its end, with a default;
# what was written before must still be read, so the old line goes to OLDER.
GOLDEN: list[tuple[Fact, str]] = [
    (facts.BucketCreated("shop", implicit=True), "94 01 a4 73686f70 c3 c0"),
    (
        facts.BucketCreated("shop", settings=BucketSettings("text/plain", 60, 3600, 1_000_000, "private")),
        "94 01 a4 73686f70 c2 95 aa 746578742f706c61696e 3c cd0e10 ce000f4240 a7 70726976617465",
    ),
    (facts.BucketDeleted("shop"), "92 02 a4 73686f70"),
    (
        facts.StreamCreated("shop/orders", "application/json", ttl_s=60, expires_at_ms=None, sliding=False),
        "98 03 ab 73686f702f6f7264657273 b0 6170706c69636174696f6e2f6a736f6e 3c c0 c2 c2 c2",
    ),
    (facts.StreamCreated("a", "b", client_ids=True, takes_type=True), "98 03 a161 a162 c0 c0 c3 c3 c3"),
    (
        facts.Appended(3, 0, 1_700_000_000_000, 0, b'{"a":1}[2]', [7, 3], True, Producer("p", 1, 2, True), "s1"),
        "9c 04 03 00 cf0000018bcfe56800 00 c40a 7b2261223a317d5b325d 920703 c3 94a1700102c3 a27331 c0 c0",
    ),
    (
        facts.Appended(3, 10, 1_700_000_000_001, 4, b"", [70_000], upload=17),
        "9c 04 03 0a cf0000018bcfe56801 04 c400 91ce00011170 c2 c0 c0 11 c0",
    ),
    (
        facts.Appended(3, 10, 1_700_000_000_001, 4, b"", [70_000], stored=Stored(99, 16, 7)),
        "9c 04 03 0a cf0000018bcfe56801 04 c400 91ce00011170 c2 c0 c0 c0 93 63 10 07",
    ),
    (facts.Closed(3, Producer("p", 1, 3), is_repeated=True), "94 05 03 94a1700103c2 c3"),
    (facts.StreamDeleted(3), "92 06 03"),
    (facts.StreamExpired(300), "92 07 cd012c"),
    (facts.Touched(70_000), "92 08 ce00011170"),
    (facts.PartStored(0, b"\x00\xff"), "93 09 00 c402 00ff"),
    (facts.PartsDropped(17), "92 0a 11"),
    (facts.Trimmed(3, 400), "93 0c 03 cd0190"),
    (
        facts.SnapshotPublished(3, 400, "a/b", 2, b"\x01\x02", b"ok", None, False),
        "99 0d 03 cd0190 a3612f62 02 c402 0102 c402 6f6b c0 c2",
    ),
    (
        facts.SnapshotPublished(3, 400, "a/b", 2, b"\x01\x02", object="snapshots/x"),
        "99 0d 03 cd0190 a3612f62 02 c402 0102 c400 ab 736e617073686f74732f78 c3",
    ),
    (
        facts.TransactionCommitted("shop", "etl", 7, 3, 300, 2, 1, 99),
        "99 0f a4 73686f70 a3 65746c 07 03 cd012c 02 01 63",
    ),
    (facts.TransactionsForgotten("shop", "etl"), "93 10 a4 73686f70 a3 65746c"),
    (facts.ContentTypeTaken(3, "a/b"), "93 12 03 a3 612f62"),
    (facts.ClockRead(1_700_000_000_000, 5), "93 11 cf0000018bcfe56800 05"),
    (facts.BucketChanged("shop", BucketSettings()), "93 0b a4 73686f70 95 c0 c0 c0 c0 a6 7075626c6963"),
]
OLDER: list[tuple[Fact, str]] = [
    (
        facts.Appended(3, 10, 1_700_000_000_001, 4, b"", [70_000], upload=17),
        "9b 04 03 0a cf0000018bcfe56801 04 c400 91ce00011170 c2 c0 c0 11",
    ),
    (facts.TransactionCommitted("a", "b", 7), "94 0f a161 a162 07"),
    (facts.BucketCreated("shop", implicit=True), "93 01 a4 73686f70 c3"),
    (facts.BucketCreated("a", implicit=False), "92 01 a161"),
    (facts.BucketChanged("a", BucketSettings()), "93 0b a161 90"),
    (facts.StreamCreated("a", "b", None, None, True), "93 03 a161 a162"),
    (facts.StreamCreated("a", "b", 60, None, False, client_ids=False), "96 03 a161 a162 3c c0 c2"),
    (facts.Appended(1, 2, 3, 4, b"", None, False, None, None, None), "96 04 01 02 03 04 c400"),
    (facts.Closed(1, None), "92 05 01"),
    (facts.Closed(3, Producer("p", 1, 3), is_repeated=False), "93 05 03 94a1700103c2"),
    (facts.StreamCreated("a", "b", 60, None, False, True, takes_type=False), "97 03 a161 a162 3c c0 c2 c3"),
    (facts.Closed(1, Producer("p", 1, 2, is_new=False)), "93 05 01 93a1700102"),
]
ONE_FACT = "dd 00000001 "

# --- strategies

numbers = st.integers(min_value=0, max_value=2**63 - 1)
words = st.text(st.characters(codec="utf-8"), max_size=12)
payloads = st.binary(max_size=40)
lengths = st.none() | st.lists(st.integers(0, 2**32), max_size=4)
producers = st.none() | st.builds(Producer, words, numbers, numbers, st.booleans())
bucket_settings = st.builds(
    BucketSettings,
    *(st.none() | words, st.none() | numbers, st.none() | numbers, st.none() | numbers, words),
)
one_of_each = {
    facts.BucketCreated: st.builds(facts.BucketCreated, words, st.booleans(), st.none() | bucket_settings),
    facts.BucketChanged: st.builds(facts.BucketChanged, words, bucket_settings),
    facts.BucketDeleted: st.builds(facts.BucketDeleted, words),
    facts.StreamCreated: st.builds(
        facts.StreamCreated,
        *(words, words, st.none() | numbers, st.none() | st.integers(-(2**63), 2**63)),
        *(st.booleans(), st.booleans(), st.booleans()),
    ),
    facts.Appended: st.builds(
        facts.Appended,
        *(numbers, numbers, numbers, numbers, payloads, lengths, st.booleans(), producers),
        *(st.none() | words, st.none() | numbers, st.none() | st.builds(Stored, numbers, numbers, numbers)),
    ),
    facts.Closed: st.builds(facts.Closed, numbers, producers, st.booleans()),
    facts.StreamDeleted: st.builds(facts.StreamDeleted, numbers),
    facts.StreamExpired: st.builds(facts.StreamExpired, numbers),
    facts.Touched: st.builds(facts.Touched, numbers),
    facts.PartStored: st.builds(facts.PartStored, numbers, payloads),
    facts.PartsDropped: st.builds(facts.PartsDropped, numbers),
    facts.Trimmed: st.builds(facts.Trimmed, numbers, numbers),
    facts.SnapshotPublished: st.builds(
        facts.SnapshotPublished,
        *(numbers, numbers, words, numbers, payloads, payloads, st.none() | words, st.booleans()),
    ),
    facts.TransactionCommitted: st.builds(
        facts.TransactionCommitted,
        *(words, words, numbers, numbers, numbers, numbers, numbers, st.none() | numbers),
    ),
    facts.TransactionsForgotten: st.builds(facts.TransactionsForgotten, words, words),
    facts.ContentTypeTaken: st.builds(facts.ContentTypeTaken, numbers, words),
    facts.ClockRead: st.builds(facts.ClockRead, numbers, numbers),
}
any_facts = st.lists(st.one_of(*one_of_each.values()), max_size=6)


def test_no_kind_of_fact_was_forgotten_here():
    kinds = set(get_args(Fact))
    assert set(one_of_each) == kinds
    assert {type(fact) for fact, _ in GOLDEN} == kinds


# --- the format


@pytest.mark.parametrize(("fact", "text"), GOLDEN, ids=[type(fact).__name__ for fact, _ in GOLDEN])
def test_the_bytes_of_each_fact_stay_what_they_are(fact, text):
    assert encode_facts([fact]).hex() == (ONE_FACT + text).replace(" ", "")
    assert decode_facts(bytes.fromhex(ONE_FACT + text)) == [fact]


@pytest.mark.parametrize(("fact", "text"), OLDER, ids=[type(fact).__name__ for fact, _ in OLDER])
def test_facts_written_before_their_last_fields_existed_can_be_read(fact, text):
    assert decode_facts(bytes.fromhex(ONE_FACT + text)) == [fact]


def test_a_batch_is_a_header_and_its_facts_in_a_row():
    """The writer reserves the header and appends fact by fact as they are decided."""
    buffer = bytearray(HEADER_BYTES)
    for number in (1, 2):
        encode_into(facts.Touched(number), buffer, -1)
    buffer[:HEADER_BYTES] = array_header(2)
    assert bytes(buffer) == encode_facts([facts.Touched(1), facts.Touched(2)])


def test_a_header_always_has_the_same_size():
    assert {len(array_header(count)) for count in (0, 1, 15, 16, 65_536, 2**32 - 1)} == {HEADER_BYTES}


def test_an_empty_batch():
    assert decode_facts(encode_facts([])) == []


@given(any_facts)
def test_facts_are_read_back_as_they_were(written):
    assert decode_facts(encode_facts(written)) == written
    assert decode_facts(memoryview(encode_facts(written))) == written


# --- refusals


def test_an_unknown_tag_is_refused():
    with pytest.raises(CorruptData, match="99"):
        decode_facts(bytes.fromhex(ONE_FACT + "92 63 01"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE_FACT,
        ONE_FACT + "92 06",
        ONE_FACT + "91 06",  # a deletion of nothing
        ONE_FACT + "92 06 a131",  # a number as text
        ONE_FACT + "92 a6 01",
        ONE_FACT + "06",
        ONE_FACT + "92 06 01 00",  # something after the end
        "dd 00000002 92 06 01",
        "81 06 01",
    ],
)
def test_what_is_no_batch_is_refused(text):
    with pytest.raises(CorruptData):
        decode_facts(bytes.fromhex(text))


@given(st.binary(max_size=40) | any_facts.map(encode_facts), st.integers(0, 60), st.integers(0, 255))
@example(bytes.fromhex(ONE_FACT + "92 02 a1 61"), 8, 0xFF)  # text that is not UTF-8
def test_any_bytes_are_facts_or_corrupt_data(data, at, byte):
    """One byte of a batch has changed, or it never was one."""
    data = data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        read = decode_facts(data)
    except CorruptData:
        return
    assert all(isinstance(fact, get_args(Fact)) for fact in read)


# --- sizes


def test_how_much_an_append_adds_to_its_stream():
    one = facts.Appended(1, 0, 1, 0, b"hello")
    batch = facts.Appended(1, 0, 1, 0, b"hello", [2, 3])
    upload = facts.Appended(1, 0, 1, 0, b"", [70_000, 5], upload=9)
    marks_only = facts.Appended(1, 0, 1, 0, b"", [])
    assert [facts.size_of(fact) for fact in (one, batch, upload, marks_only)] == [5, 5, 70_005, 0]
    assert [facts.message_count(fact) for fact in (one, batch, upload, marks_only)] == [1, 2, 2, 0]
