"""The archive's format: what goes in comes out, and damage is noticed."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model import facts
from millstream.model.errors import CorruptData, UnknownFormat
from millstream.storage.archive import object as archive_object
from millstream.storage.archive.arrow import SCHEMA, batch_of_rows, record_batch
from millstream.storage.archive.arrow_stream import END, batch_pieces, single_pieces, stream_start
from millstream.storage.archive.chunk import ArchivedFact, Chunk, ChunkStream, RowCollector, subject_of
from millstream.storage.archive.object import ArchiveWriter, StoredChunk, archive_name, read_chunk, read_index
from millstream.storage.archive.rows import Row, Selection, rows_of_block, rows_of_chunk, rows_of_facts, selected
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects
from millstream.storage.segments.block import Columns, decode_block, encode_block

NAMES = {
    2: ChunkStream(2, "words", "text/plain"),
    3: ChunkStream(3, "deep/päth", "application/json"),
    9: ChunkStream(9, "x", "application/octet-stream"),
}


def history(count=40, seed=0):
    """Facts of three streams as they might have happened."""
    chance = random.Random(seed)
    tails = dict.fromkeys(NAMES, 0)
    rows = [ArchivedFact(1, 1000, 0, facts.BucketCreated("box"))]
    for index in range(count):
        sequence, at_ms = 10 + 2 * index, 1000 + index // 3
        number = chance.choice(list(NAMES))
        kind = chance.randrange(8)
        if kind == 0:
            fact = facts.Touched(number)
        elif kind == 1:
            fact = facts.SnapshotPublished(number, tails[number], "text/x-state", 4, b"d" * 16, b"SNAP")
        elif kind == 2:
            fact = facts.SnapshotPublished(number, tails[number], "text/plain", 1 << 30, b"d" * 16, b"", "snapshots/1")
        elif kind == 3:
            fact = facts.Trimmed(number, tails[number])
        else:
            lengths = [chance.randrange(5) for _ in range(chance.randrange(4))] if kind == 4 else None
            size = sum(lengths) if lengths is not None else chance.randrange(30)
            producer = facts.Producer("p", 1, index) if kind == 5 else None
            fact = facts.Appended(
                number, tails[number], at_ms, index, chance.randbytes(size), lengths, kind == 6, producer, "s" * kind
            )
            tails[number] += size
        rows.append(ArchivedFact(sequence, at_ms, tails[number], fact))
    return rows


@pytest.fixture
def store(tmp_path):
    store = LocalObjects(tmp_path, Files())
    store.prepare(archive_object.FOLDER)
    return store


def named(row):
    return NAMES.get(subject_of(row.sequence, row.fact))


def chunk_of(rows):
    """The bytes of the one chunk that these facts make."""
    with TemporaryDirectory() as folder:
        store = LocalObjects(Path(folder), Files())
        store.prepare(archive_object.FOLDER)
        (chunk,) = stored(store, 1, rows)
        return store.get_range(archive_name(1), chunk.at, chunk.size)


def stored(store, number, rows, bucket="box"):
    """An object of these facts; where its chunks lie."""
    with ArchiveWriter(store, number) as archive:
        for row in rows:
            archive.bucket(bucket).add(named(row), row)
        assert archive.finish() == store.size(archive_name(number))
    return archive.rows


@pytest.mark.parametrize("seed", range(5))
def test_a_chunk_gives_back_what_it_was_made_from(seed):
    rows = history(seed=seed)
    chunk = Chunk(chunk_of(rows))
    bucket, streams = chunk.names()
    assert bucket == "box"
    assert {stream for stream in streams if stream.content_type != "text/x-state"} <= set(NAMES.values()) | {
        stream._replace(content_type="text/plain") for stream in NAMES.values()
    }
    assert chunk.whole_facts() == rows
    assert all(not getattr(row.fact, "payload", b"") for row in chunk.facts())
    assert [row[:3] for row in chunk.facts()] == [row[:3] for row in rows]
    assert chunk.fact_count == len(rows)
    assert chunk.payload() == b"".join(getattr(row.fact, "payload", b"") for row in rows)


def test_a_compressible_payload_is_compressed_and_another_is_not():
    def one(payload):
        return chunk_of([ArchivedFact(5, 1, len(payload), facts.Appended(2, 0, 1, 0, payload))])

    assert len(one(b"a" * 100_000)) < 2_000
    noise = random.Random(1).randbytes(100_000)
    assert 100_000 < len(one(noise)) < 101_000
    assert Chunk(one(noise)).payload() == noise


def test_every_damaged_byte_of_a_chunk_is_noticed():
    data = chunk_of(history(10))
    Chunk(data)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData):
            Chunk(damaged)
    for end in (0, 20, len(data) - 1):
        with pytest.raises(CorruptData):
            Chunk(data[:end])


def test_an_object_holds_buckets_and_says_where(store):
    rows = history(60)
    other = ArchivedFact(7, 900, 0, facts.BucketDeleted("gone"))
    with ArchiveWriter(store, 3) as archive:
        archive.bucket("box").add(None, rows[0])
        archive.bucket("gone").add(None, other)
        for row in rows[1:]:
            archive.bucket("box").add(named(row), row)
        size = archive.finish()
    assert store.size(archive_name(3)) == size
    assert read_index(store, archive_name(3)) == archive.rows
    box, gone = archive.rows
    assert (box.bucket, box.first_sequence, box.last_sequence, box.last_ms) == ("box", 1, 128, rows[-1].at_ms)
    assert (gone.bucket, gone.facts, gone.rows, gone.bytes) == ("gone", 1, 0, 0)
    assert read_chunk(store, 3, box.at, box.size).whole_facts() == rows
    assert read_chunk(store, 3, gone.at, gone.size).whole_facts() == [other]


@pytest.mark.parametrize(("limit", "value"), [("CHUNK_BYTES", 500), ("CHUNK_FACTS", 7)])
def test_a_bucket_is_cut_into_chunks(store, monkeypatch, limit, value):
    monkeypatch.setattr(archive_object, limit, value)
    rows = history(100)
    places = stored(store, 1, rows)
    assert len(places) > 5
    chunks = [read_chunk(store, 1, place.at, place.size) for place in places]
    assert [row for chunk in chunks for row in chunk.whole_facts()] == rows
    for place, chunk in zip(places, chunks, strict=True):
        assert (place.facts, place.rows, place.bytes) == (chunk.fact_count, chunk.row_count, len(chunk.payload()))
        assert place.bytes <= 500
        assert place.facts <= (7 if limit == "CHUNK_FACTS" else 100)
        found = chunk.facts()
        assert (place.first_sequence, place.last_sequence) == (found[0].sequence, found[-1].sequence)


def test_what_is_larger_than_a_chunk_has_one_for_itself(store, monkeypatch):
    monkeypatch.setattr(archive_object, "CHUNK_BYTES", 500)
    sizes = [10, 10, 2000, 10, 3000, 3000]
    places = stored(store, 1, [appended(5 + n, 1, 0, 1, n, bytes(size)) for n, size in enumerate(sizes)])
    assert [place.bytes for place in places] == [20, 2000, 10, 3000, 3000]


def test_stored_chunks_keep_their_place_among_facts(store):
    (place,) = stored(store, 1, [appended(7, 2, 0, 2, 0, b"two")])
    data = store.get_range(archive_name(1), place.at, place.size)
    with ArchiveWriter(store, 2) as archive:
        archive.bucket("box").add(NAMES[2], appended(6, 1, 0, 1, 0, b"one"))
        archive.add_stored(StoredChunk(place, data))
        archive.bucket("box").add(NAMES[2], appended(8, 3, 0, 3, 0, b"three"))
        archive.finish()
    assert [(row.first_sequence, row.last_sequence) for row in archive.rows] == [(6, 6), (7, 7), (8, 8)]
    assert b"".join(read_chunk(store, 2, row.at, row.size).payload() for row in archive.rows) == b"onetwothree"


def test_an_object_without_facts_or_end_is_none(store):
    with ArchiveWriter(store, 1) as archive:
        assert archive.finish() == 0
    with ArchiveWriter(store, 2) as archive:
        archive.bucket("box").add(NAMES[2], appended(6, 1, 0, 1, 0, b"one"))
    assert store.list(archive_object.FOLDER) == []


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:20], CorruptData),
        (lambda data: data[:-1], CorruptData),
        (lambda data: data[:8] + b"\x03" + data[9:], UnknownFormat),
        (lambda data: b"X" + data[1:], CorruptData),
        (lambda data: data[:-40] + b"\0" + data[-39:], CorruptData),
    ],
)
def test_a_damaged_object_is_refused(store, tmp_path, damage, error):
    stored(store, 1, history(5))
    path = tmp_path / archive_name(1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(error):
        read_index(store, archive_name(1))


# --- rows


def plain(rows, selection):
    return [row._replace(value=None if row.value is None else bytes(row.value)) for row in selected(rows, selection)]


def of_stream(pieces):
    """Rows of a batch as the server writes it."""
    table = pa.ipc.open_stream(b"".join([stream_start(), *pieces, END])).read_all()
    table.validate(full=True)
    assert table.schema == SCHEMA
    return table.to_pylist()


def of_arrow(rows, selection, incarnation=7):
    batch = record_batch(rows, selection, incarnation)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert of_stream(batch_pieces(rows, selection, incarnation)) == batch.to_pylist()
    found = []
    for row in batch.to_pylist():
        assert row["bucket"] == rows.bucket
        prefix, sequence = row["position"].split(".")
        assert int(prefix, 16) == incarnation
        at_ms = round(row["timestamp"].timestamp() * 1000)
        found.append(
            (row["stream"], row["offset"], row["next_offset"], int(sequence), row["id"], at_ms, row["content_type"],
             row["kind"], row["value"])
        )  # fmt: skip
    return found


selections = st.builds(
    Selection,
    after=st.integers(0, 120),
    until=st.integers(0, 140),
    prefix=st.sampled_from(["", "w", "deep/", "nobody"]),
    first_offset=st.sampled_from([0, 0, 30]),
    gone=st.dictionaries(st.sampled_from([2, 3, 9]), st.none() | st.integers(0, 100)),
)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 20), selection=selections)
def test_arrow_and_single_rows_say_the_same(seed, selection):
    rows = rows_of_chunk(Chunk(chunk_of(history(50, seed))))
    one_by_one = plain(rows, selection)
    assert of_arrow(rows, selection) == one_by_one
    for row in one_by_one:
        assert selection.after < row.sequence <= selection.until
        assert row.stream.startswith(selection.prefix)
        if row.kind == "message":
            assert len(row.value) == row.next_offset - row.offset
        else:
            assert row.kind == "snapshot" or row.value is None


@pytest.mark.parametrize("seed", range(5))
def test_facts_in_memory_and_in_a_chunk_make_the_same_rows(seed):
    happened = history(50, seed)
    collected = RowCollector()
    for row in happened[1:]:
        collected.take(named(row), row)
    everything = Selection(0, 1 << 40, gone={3: 20, 9: None})
    in_chunk = rows_of_chunk(Chunk(chunk_of(happened)))
    assert plain(rows_of_facts("box", collected), everything) == plain(in_chunk, everything)


def test_a_block_makes_rows():
    head, payload = encode_block(2, 100, Columns([b"ab", b"", b"cde"], [5, 5, 6], [7, 7, 8], [0, 1, 0], [30, 30, 31]))
    rows = rows_of_block(decode_block(head + payload, 2), "box", NAMES[2])
    everything = Selection(0, 100)
    assert plain(rows, everything) == of_arrow(rows, everything)
    assert [(row.offset, row.next_offset, row.sequence, row.id, row.value) for row in plain(rows, everything)] == [
        (100, 102, 30, "7-0", b"ab"),
        (102, 102, 30, "7-1", b""),
        (102, 105, 31, "8-0", b"cde"),
    ]
    assert [row.sequence for row in plain(rows, Selection(30, 100))] == [31]
    assert [row.offset for row in plain(rows, Selection(0, 100, first_offset=102))] == [102, 102]


def test_the_schema_is_the_one_that_pyarrow_writes():
    assert stream_start() == SCHEMA.serialize().to_pybytes()


def test_single_rows_make_a_batch_too():
    rows = [
        Row("a", 0, 12, 5, None, None, "text/plain", "gap", None),
        Row("b", 3, 4, 1000, "17-0", 1700, "", "message", b"x"),
        Row("c", 3, 3, 7, "18-0", 1700, "x", "message", b""),
    ]
    found = of_stream(single_pieces("box", rows, 7))
    assert found == batch_of_rows("box", rows, 7).to_pylist()
    assert [row["value"] for row in found] == [None, b"x", b""]
    assert of_stream(single_pieces("box", [], 7)) == []


def test_numbers_of_any_width_are_written():
    rows = [
        ArchivedFact(sequence, at_ms, 0, facts.Appended(2, 0, id_ms, id_seq, b""))
        for sequence, at_ms, id_ms, id_seq in [
            (1, 0, 0, 0),
            (9, 5, 7, 9),
            (10, 5, 10**12, 10),
            (2**53, 2**45, 2**60, 2**62),
        ]
    ]
    everything = Selection(0, 1 << 62)
    chunk = rows_of_chunk(Chunk(chunk_of(rows)))
    assert of_arrow(chunk, everything) == plain(chunk, everything)


def appended(sequence, at_ms, offset, id_ms, id_seq, payload):
    return ArchivedFact(sequence, at_ms, offset + len(payload), facts.Appended(2, offset, id_ms, id_seq, payload))


def messages(sequences, ids, sizes):
    """Messages of one stream that follow each other."""
    rows, offset = [], 40
    for sequence, (id_ms, id_seq), size in zip(sequences, ids, sizes, strict=True):
        rows.append(appended(sequence, id_ms, offset, id_ms, id_seq, b"x" * size))
        offset += size
    return rows_of_chunk(Chunk(chunk_of(rows)))


def ids_of_commits(sizes, first_counter=0, at_ms=1_700_000_000_000):
    """Ids as commits of so many messages give them."""
    ids = [(at_ms + index, counter) for index, size in enumerate(sizes) for counter in range(size)]
    return [(at_ms, first_counter + counter) if at == at_ms else (at, counter) for at, counter in ids]


COUNTING_ON = [
    pytest.param(range(1000, 3040), id="from the first number that has a thousand"),
    pytest.param(range(998, 1003), id="over the first thousand"),
    pytest.param(range(9990, 10_020), id="into another width"),
    pytest.param(range(123_456, 123_460), id="within a thousand"),
    pytest.param([5000, 5000, 5002], id="as many as if they counted on"),
    pytest.param([7], id="one"),
]
IDS = [
    pytest.param(lambda n: ids_of_commits([n]), id="one commit"),
    pytest.param(lambda n: ids_of_commits([1] * n), id="a commit each"),
    pytest.param(lambda n: ids_of_commits([7] * (n // 7) + [n % 7], 3), id="commits, the first begun before"),
    pytest.param(lambda n: ids_of_commits([n], at_ms=0), id="of the first millisecond"),
    pytest.param(lambda n: [(10**index % 10**15, index % 5) for index in range(n)], id="of all widths"),
    pytest.param(lambda n: [(5, (index * 7) % 11) for index in range(n)], id="in no order"),
    pytest.param(lambda n: [(5 if index < 2 else 6, index) for index in range(n)], id="counting on over a commit"),
]


@pytest.mark.parametrize("sequences", COUNTING_ON)
@pytest.mark.parametrize("ids", IDS)
def test_the_short_ways_write_what_the_long_ones_do(sequences, ids):
    everything = Selection(0, 1 << 62)
    for sizes in ([10] * len(sequences), [index % 3 for index in range(len(sequences))], [0] * len(sequences)):
        rows = messages(sequences, ids(len(sequences)), sizes)
        assert of_arrow(rows, everything) == plain(rows, everything)


def test_snapshots_between_messages_do_not_look_like_a_run_of_them():
    """Their offsets and lengths add up as if every row started where the one before ends."""

    def snapshot(sequence, offset, size):
        fact = facts.SnapshotPublished(2, offset, "text/plain", size, b"d" * 16, b"s" * size)
        return ArchivedFact(sequence, 1000, offset, fact)

    happened = [
        snapshot(5, 10, 3),
        appended(6, 1000, 20, 1000, 0, b"m" * 10),
        snapshot(7, 30, 7),
        appended(8, 1001, 30, 1001, 0, b"n" * 10),
    ]
    rows = rows_of_chunk(Chunk(chunk_of(happened)))
    assert len(rows.streams) == 1
    assert of_arrow(rows, Selection(0, 100)) == plain(rows, Selection(0, 100))


def test_an_empty_selection_is_an_empty_batch():
    rows = rows_of_chunk(Chunk(chunk_of([ArchivedFact(1, 1, 0, facts.BucketCreated("box"))])))
    assert record_batch(rows, Selection(0, 10), 1).num_rows == 0
    assert of_stream(batch_pieces(rows, Selection(0, 10), 1)) == []
    assert pa.Table.from_batches([record_batch(rows, Selection(0, 10), 1)]).schema == SCHEMA


def test_facts_keep_what_a_restore_needs():
    fact = facts.Appended(2, 0, 1, 0, b"abc", [1, 2], True, facts.Producer("p", 1, 2, True), "seq")
    (row,) = Chunk(chunk_of([ArchivedFact(4, 5, 3, fact)])).whole_facts()
    assert row.fact == fact
    assert msgspec.structs.asdict(row.fact)["producer"].is_new
