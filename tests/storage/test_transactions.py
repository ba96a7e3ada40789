"""Staged parts and transactions' objects: what clients send, sorted, merged, and checked again when it is read."""

from __future__ import annotations

import base64
import io
import json
import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.faulty_files import QuickFiles

from millstream.model.commands import Addition
from millstream.model.errors import BadRequest, CorruptData, TransactionRefused, UnknownFormat
from millstream.storage.objects import LocalObjects
from millstream.storage.transactions import merging
from millstream.storage.transactions.arrow import BATCH_BYTES_MAX, ArrowRows
from millstream.storage.transactions.merging import Merged, merge_parts
from millstream.storage.transactions.ndjson import NdjsonRows
from millstream.storage.transactions.objects import decode_additions, object_name, read_additions, read_stored
from millstream.storage.transactions.parts import PartHead, part_name, read_groups, read_head, write_part

HEAD = PartHead("shop", 1, "etl", 7, "p", 5)
Row = tuple[str, bytes, object]  # stream, message, order


@pytest.fixture
def store(tmp_path) -> LocalObjects:
    return make_store(tmp_path)


def make_store(root: Path) -> LocalObjects:
    objects = LocalObjects(root, QuickFiles())
    objects.prepare("staged")
    objects.prepare("transactions")
    return objects


def ndjson(rows: Iterable[Row]) -> bytes:
    lines = []
    for stream, message, order in rows:
        line = {"stream": stream, "value": base64.b64encode(message).decode()}
        lines.append(json.dumps(line if order is None else line | {"order": order}))
    return "\n".join(lines).encode()


def arrow(rows: Iterable[Row], batch_rows: int = 3) -> bytes:
    streams, messages, orders = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    columns = {"stream": pa.array(streams, pa.string()), "value": pa.array(messages, pa.binary())}
    if orders and orders[0] is not None:
        columns["order"] = pa.array(orders)
    return ipc(pa.table(columns), batch_rows)


def ipc(table: pa.Table, batch_rows: int = 1000, **options: object) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return out.getvalue()


def stage(
    store: LocalObjects, number: int, body: bytes, kind: type = NdjsonRows, message_max: int = 1 << 20
) -> PartHead:
    return write_part(store, number, HEAD, kind(io.BytesIO(body), message_max))


def additions(store: LocalObjects, number: int) -> list[Addition]:
    return [addition for chunk in read_additions(store, number) for addition in decode_additions(chunk)]


def merged(store: LocalObjects, number: int, parts: list[int]) -> dict[str, list[bytes]]:
    """What the object holds, stream by stream, message by message."""
    figures = merge_parts(store, number, parts)
    found: dict[str, list[bytes]] = {}
    for addition in additions(store, number):
        messages = found.setdefault(addition.stream, [])
        for piece in addition.slices:
            payload = read_stored(store, piece.stored, sum(piece.lengths))
            at = 0
            for length in piece.lengths:
                messages.append(payload[at : at + length])
                at += length
    sizes = [len(message) for messages in found.values() for message in messages]
    assert figures == Merged(len(sizes), sum(sizes), len(found))
    return found


def expected(parts: list[list[Row]]) -> dict[str, list[bytes]]:
    """The order that is promised: order, part, row."""
    rows = [(row[2] or 0, place, index, row) for place, part in enumerate(parts) for index, row in enumerate(part)]
    found: dict[str, list[bytes]] = {}
    for _, _, _, (stream, message, _) in sorted(rows, key=lambda row: row[:3] if row[0] else (0, *row[1:3])):
        found.setdefault(stream, []).append(message)
    return found


def as_body(kind: type, rows: list[Row]) -> bytes:
    return arrow(rows) if kind is ArrowRows and rows else ndjson(rows)


def fault(body: bytes, kind: type, store: LocalObjects, message_max: int = 1 << 20) -> str:
    with pytest.raises(BadRequest) as caught:
        stage(store, 1, body, kind, message_max)
    assert caught.value.code == "bad_part"
    assert store.list("staged") == [], "a refused part leaves nothing"
    return caught.value.message


# --- the order


streams = st.sampled_from(["a", "b", "ü", "c" * 50])
messages = st.binary(min_size=1, max_size=20)


def parts_of(orders: st.SearchStrategy) -> st.SearchStrategy[list[list[Row]]]:
    return st.lists(st.lists(st.tuples(streams, messages, orders), max_size=12), min_size=1, max_size=4)


any_parts = st.one_of(
    parts_of(st.none()),
    parts_of(st.integers(-3, 3)),
    parts_of(st.integers(-(2**63), 2**63 - 1)),
    parts_of(st.text(min_size=1, max_size=2)),
)


@pytest.mark.parametrize("kind", [NdjsonRows, ArrowRows])
@pytest.mark.parametrize("sizes", [(1 << 20, 1 << 20, 1 << 20), (16, 24, 0)], ids=["usual sizes", "tiny ones"])
def test_messages_come_in_the_order_of_order_part_and_row(tmp_path_factory, monkeypatch, kind, sizes):
    run_bytes, slice_bytes, in_memory = sizes
    monkeypatch.setattr(f"{kind.__module__}.RUN_BYTES", run_bytes)
    monkeypatch.setattr(merging, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(merging, "_IN_MEMORY_MAX", in_memory)
    monkeypatch.setattr(merging, "_WINDOW_BYTES", 8)
    monkeypatch.setattr(merging, "_CHUNK_STREAMS", 2)

    @settings(max_examples=60, deadline=None)
    @given(any_parts)
    def holds(parts: list[list[Row]]) -> None:
        store = make_store(tmp_path_factory.mktemp("store"))
        for number, rows in enumerate(parts, 1):
            # Without a row there is no schema either: an empty part is an empty file of lines.
            head = stage(store, number, as_body(kind, rows), kind if rows else NdjsonRows)
            assert (head.messages, head.bytes) == (len(rows), sum(len(row[1]) for row in rows))
        assert merged(store, 99, list(range(1, len(parts) + 1))) == expected(parts)

    holds()


def test_the_two_formats_go_together(store):
    stage(store, 1, ndjson([("a", b"third", 3), ("a", b"first", 1)]))
    stage(store, 2, arrow([("a", b"second", 2)]), ArrowRows)
    assert merged(store, 9, [1, 2]) == {"a": [b"first", b"second", b"third"]}


def test_the_list_of_parts_decides_between_equals(store):
    for number, text in ((1, b"one"), (2, b"two")):
        stage(store, number, ndjson([("a", text, 5)]))
    assert merged(store, 8, [1, 2]) == {"a": [b"one", b"two"]}
    assert merged(store, 9, [2, 1]) == {"a": [b"two", b"one"]}


def test_times_are_an_order_too_in_any_unit(store):
    def part(number: int, unit: str, times: list[int]) -> None:
        table = pa.table(
            {
                "stream": ["a"] * len(times),
                "value": [f"{unit}{time}".encode() for time in times],
                "order": pa.array(times, pa.timestamp(unit, tz="UTC")),
            }
        )
        stage(store, number, ipc(table), ArrowRows)

    part(1, "s", [3, 1])
    part(2, "ms", [2500, 500])
    assert merged(store, 9, [1, 2]) == {"a": [b"ms500", b"s1", b"ms2500", b"s3"]}


def test_other_arrow_types_that_mean_the_same(store):
    table = pa.table(
        {
            "order": pa.array([2, 1], pa.uint8()),
            "stream": pa.array(["a", "b"], pa.large_string()).dictionary_encode(),
            "value": pa.array(["x", "y"], pa.large_string()),
            "more": [1, 2],
        }
    )
    assert stage(store, 1, ipc(table, compression="zstd"), ArrowRows).messages == 2
    assert merged(store, 9, [1]) == {"a": [b"x"], "b": [b"y"]}


def test_orders_of_different_kinds_refuse_the_whole(store):
    stage(store, 1, ndjson([("a", b"x", 1)]))
    stage(store, 2, ndjson([("a", b"y", "1")]))
    stage(store, 3, b"")
    with pytest.raises(TransactionRefused) as caught:
        merge_parts(store, 9, [1, 2, 3])
    assert [reason.code for reason in caught.value.reasons] == ["order_mismatch"]
    assert store.list("transactions") == []
    assert merged(store, 9, [1, 3]) == {"a": [b"x"]}


def test_one_large_stream_is_cut_into_slices(store):
    rng = random.Random(5)
    rows = [("a", rng.randbytes(rng.choice([10, 100_000, 700_000])), None) for _ in range(60)]
    stage(store, 1, ndjson(rows))
    assert merged(store, 9, [1]) == expected([rows])
    slices = [sum(piece.lengths) for addition in additions(store, 9) for piece in addition.slices]
    assert len(slices) > 10
    assert all(size <= merging.SLICE_BYTES or size == 700_000 for size in slices)


# --- JSON, which may or may not matter


@pytest.mark.parametrize("kind", [NdjsonRows, ArrowRows])
@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([b"1", b'{"a": [1, 2]}', b' "x" ', b"null"], None),
        ([b"1", b"nope", b"2"], "row 2"),
        ([b"1,2", b"[3", b"4]"], "row 1"),
        ([b"[1", b"2]"], "row 1"),
        ([b"1", b'"\xff"'], "row 2"),
        ([b'"\\ud83d"', b"1"], None),
        ([b"[" * 20_000 + b"]" * 20_000], "row 1"),
        ([b"NaN"], "row 1"),
    ],
)
def test_messages_that_are_no_json_are_noted(store, kind, rows, where):
    body = as_body(kind, [("s", message, None) for message in rows])
    stage(store, 1, body, kind)
    (group,) = read_groups(store, 1, read_head(store, 1)[1])
    assert (group.fault or "").partition(":")[0] == (where or "")
    merge_parts(store, 9, [1])
    assert additions(store, 9)[0].fault == group.fault


def test_the_json_of_a_line_is_kept_byte_for_byte(store):
    stage(store, 1, b'{"stream":"a","json": {"b":1.50,  "a":[ 1 ]} }\n\n{"stream":"a","json":null}\n')
    assert merged(store, 9, [1]) == {"a": [b'{"b":1.50,  "a":[ 1 ]}', b"null"]}


# --- bad input


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"hello", "row 1"),
        (b'{"stream":"a","json":1}\n{"stream":"a"}', 'row 2: it has neither "value" nor "json"'),
        (b'{"stream":"a","json":1,"value":"YQ=="}', "both"),
        (b'{"stream":"a","value":"???"}', "row 1"),
        (b'{"stream":"a","value":""}', "1 to 1048576 bytes"),
        (b'{"stream":"","json":1}', "stream must have"),
        (b'{"stream":"' + b"x" * 1025 + b'","json":1}', "stream must have"),
        (b'{"stream":7,"json":1}', "row 1"),
        (b'{"stream":"a","json":1,"extra":1}', "extra"),
        (b'{"stream":"a","json":1,"order":1.5}', "row 1"),
        (b'{"stream":"a","json":1,"order":true}', "row 1"),
        (b'{"stream":"a","json":1,"order":9223372036854775808}', "64 bits"),
        (b'{"stream":"a","json":1,"order":1}\n{"stream":"a","json":1}', "row 2: order must be in all rows"),
        (b'{"stream":"a","json":1}\n{"stream":"a","json":1,"order":1}', "row 2: order must be in all rows"),
        (b'{"stream":"a","json":1,"order":1}\n{"stream":"a","json":1,"order":"1"}', "row 2: order"),
        (b'{"stream":"\xff","json":1}', "row 1"),
        (b"[" * 100_000, "row 1"),
    ],
)
def test_bad_lines(store, body, said):
    assert said in fault(body, NdjsonRows, store)


def test_a_line_without_end(store):
    assert "too long" in fault(b'{"stream":"a","value":"' + b"A" * (5 << 20), NdjsonRows, store, message_max=1000)


def columns(**columns: object) -> bytes:
    return ipc(pa.table({"stream": ["a", "b"], "value": [b"x", b"y"], **columns}))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no Arrow stream"),
        (b"hello, this is no Arrow", "no Arrow stream"),
        (columns()[:-200], "no Arrow stream"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "impossible size"),
        (b"\xff\xff\xff\xff\x08\x00\x00\x00abcdefgh", "damaged metadata"),
        (ipc(pa.table({"value": [b"x"]})), "one column 'stream'"),
        (ipc(pa.table({"stream": ["a"]})), "one column 'value'"),
        (ipc(pa.table([["a"], ["b"], [b"x"]], names=["stream", "stream", "value"])), "one column 'stream'"),
        (columns(stream=[1, 2]), "must be a string"),
        (columns(value=[1, 2]), "must be binary"),
        (columns(value=[b"x", None]), "row 2: 'value' is null"),
        (columns(value=[b"x", b""]), "row 2: 'value' must have 1 to"),
        (columns(value=[b"x", b"y" * 2_000_000]), "row 2: 'value' must have 1 to 1048576"),
        (columns(stream=["", "b"]), "row 1: 'stream' must have"),
        (columns(stream=[None, "b"]), "row 1: 'stream' is null"),
        (columns(order=[1.5, 2.5]), "must be an integer, a timestamp or a string"),
        (columns(order=[1, None]), "row 2: 'order' is null"),
        (columns(order=pa.array([1, 2**64 - 1], pa.uint64())), "no Arrow stream that can be read"),
        (columns(order=pa.array([1, 2**62], pa.timestamp("s"))), "no Arrow stream that can be read"),
    ],
)
def test_bad_arrow(store, body, said):
    assert said in fault(body, ArrowRows, store)


def test_a_record_batch_is_bounded_before_it_is_read(store):
    big = ipc(pa.table({"stream": ["a"], "value": [b"x" * (BATCH_BYTES_MAX + 1)]}))
    assert "send batches of at most" in fault(big, ArrowRows, store, message_max=1 << 30)


def test_a_broken_stream_behind_good_batches(store):
    good = arrow([("a", b"x", None)] * 100, batch_rows=10)
    assert "no Arrow stream" in fault(good[:-300] + b"\0" * 40, ArrowRows, store)


# --- damage


@pytest.mark.parametrize("folder", ["staged", "transactions"])
def test_every_flipped_byte_is_noticed(store, tmp_path, folder):
    stage(store, 1, ndjson([("a", b"hello", 2), ("b", b"world", 1), ("a", b"again", 1)]))
    merge_parts(store, 2, [1])
    path = tmp_path / (part_name(1) if folder == "staged" else object_name(2))
    whole = path.read_bytes()

    def read() -> object:
        if folder == "staged":
            return merged(store, 3, [1])
        return [
            (addition.stream, [(piece.lengths, read_stored(store, piece.stored, sum(piece.lengths)))])
            for addition in additions(store, 2)
            for piece in addition.slices
        ]

    for at in range(len(whole)):
        if len(whole) - 16 <= at < len(whole) - 8 or 10 <= at < 16:
            continue  # zeros without a meaning
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((CorruptData, UnknownFormat)):
            read()
        store.remove([object_name(3)])
    path.write_bytes(whole[:20])
    with pytest.raises(CorruptData):
        read()


def test_lengths_are_32_bits_of_this_machine():
    assert array("I").itemsize == 4
    assert array("q").itemsize == 8
