"""Files to load: found, named, cut and read so that every row comes once and in order, wherever the cuts fall."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.pipeline import source_files
from millstream.spark.pipeline.source_files import Columns, LoadError, cut, find_files, fingerprint, grouped, read_piece

BY_RUN = Columns("run")


def rows_of(path, columns=BY_RUN) -> list[tuple[str, bytes]]:
    """All rows of a file, as its pieces give them; checks that their order is that of the file."""
    streams, values, orders = [], [], []
    for piece in cut(find_files([str(path)]), columns):
        for batch in read_piece(piece, columns):
            streams += batch.column("stream").to_pylist()
            values += batch.column("value").to_pylist()
            orders += batch.column("order").to_pylist()
    assert orders == sorted(set(orders))
    return list(zip(streams, values, strict=True))


@pytest.fixture(params=[1, 7, 64, 1 << 20])
def small_pieces(request, monkeypatch):
    monkeypatch.setattr(source_files, "PIECE_BYTES", request.param)
    monkeypatch.setattr(source_files, "BATCH_ROWS", 3)


def test_lines_come_byte_for_byte_wherever_the_cuts_fall(tmp_path, small_pieces):
    lines = [b'{"run": "r%d",  "n":%d.0}' % (n % 3, n) for n in range(20)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines[:10]) + b"\r\n\n" + b"\n".join(lines[10:]))
    assert rows_of(path) == [(f"r{n % 3}", line) for n, line in enumerate(lines)]


def test_the_message_may_be_one_member_of_a_line(tmp_path):
    path = tmp_path / "edits.jsonl"
    path.write_text('{"document":"a","patch":{"x": 1}}\n{"patch":[2],"document":7}\n')
    assert rows_of(path, Columns("document", "patch")) == [("a", b'{"x": 1}'), ("7", b"[2]")]


def test_a_text_goes_without_its_quotes_where_the_stream_is_no_json(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"run":"a","text":"caf\\u00e9\\n"}\n{"run":"a","text":5}\n')
    assert rows_of(path, Columns("run", "text", as_text=True)) == [("a", "café\n".encode()), ("a", b"5")]


def test_csv_rows_may_hold_line_breaks(tmp_path, small_pieces):
    table = [{"run": f"r{n % 2}", "text": 'say "hi",\n' * (n % 4), "n": str(n)} for n in range(12)]
    path = tmp_path / "table.csv"
    text = io.StringIO()
    writer = csv.DictWriter(text, ["run", "text", "n"])
    writer.writeheader()
    writer.writerows(table)
    path.write_text(text.getvalue(), newline="")
    assert [(stream, json.loads(value)) for stream, value in rows_of(path)] == [(row["run"], row) for row in table]
    assert [value for _, value in rows_of(path, Columns("run", "n"))] == [row["n"].encode() for row in table]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8))
    )
)
def test_any_csv_is_read_as_it_was_written(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "text"])
        writer.writerows(table)
    pieces, source_files.PIECE_BYTES = source_files.PIECE_BYTES, 5
    try:
        assert [(stream, json.loads(value)["text"]) for stream, value in rows_of(path)] == table
    finally:
        source_files.PIECE_BYTES = pieces


def test_parquet_rows_become_json_or_bytes(tmp_path, small_pieces):
    table = pa.table({"run": ["a", "b"] * 5, "n": list(range(10)), "raw": [b"\x00%d" % n for n in range(10)]})
    path = tmp_path / "table.parquet"
    pq.write_table(table.select(["run", "n"]), path, row_group_size=3)
    assert [(stream, json.loads(value)) for stream, value in rows_of(path)] == [
        (row["run"], row) for row in table.select(["run", "n"]).to_pylist()
    ]
    pq.write_table(table, path, row_group_size=4)
    assert [value for _, value in rows_of(path, Columns("run", "raw"))] == table["raw"].to_pylist()
    assert [value for _, value in rows_of(path, Columns("run", "n"))] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.jsonl", b'{"run":"a"}\n{"run":\n', "at byte 12"),
        ("missing.jsonl", b'{"walk":"a"}\n', "run"),
        ("null.jsonl", b'{"run":null}\n', "cannot name a stream"),
        ("short.csv", b"run,n\na,1\nb\n", "1 fields instead of 2"),
        ("columns.csv", b"walk,n\na,1\n", "has no column 'run'; it has walk, n"),
        ("latin.csv", b"run,n\na,\xff\n", "not UTF-8"),
        ("none.parquet", b"not parquet", "no Parquet file"),
        ("odd.txt", b"x", "--format"),
    ],
)
def test_what_cannot_be_loaded_is_named_with_its_place(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LoadError, match=said) as raised:
        rows_of(path)
    assert name in str(raised.value)


def test_an_empty_message_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text('run,n\na,""\n')
    with pytest.raises(LoadError, match="a row of stream a is empty"):
        rows_of(tmp_path / "a.csv", Columns("run", "n"))


def test_empty_files_are_fine(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "header.csv").write_text("run,n\n")
    assert rows_of(tmp_path / "empty.jsonl") == []
    assert rows_of(tmp_path / "header.csv") == []


def test_files_are_found_by_name_folder_and_glob_each_once(tmp_path):
    for name in ("b.jsonl", "a.csv", "notes.txt", "c.parquet"):
        (tmp_path / name).write_text("x")
    names = [os.path.basename(file.path) for file in find_files([str(tmp_path), str(tmp_path / "*.jsonl")])]
    assert names == ["a.csv", "b.jsonl", "c.parquet"]
    assert find_files([str(tmp_path / "notes.txt")], "jsonl")[0].format == "jsonl"
    with pytest.raises(LoadError, match="there is no file"):
        find_files([str(tmp_path / "*.orc")])


def test_a_set_of_files_is_known_by_its_content_not_by_its_place_or_time(tmp_path):
    first, copy = tmp_path / "one" / "a.jsonl", tmp_path / "two" / "a.jsonl"
    first.parent.mkdir()
    copy.parent.mkdir()
    first.write_text('{"run":"a"}\n')
    shutil.copyfile(first, copy)
    os.utime(copy, (1, 1))

    def name(path, *settings):
        return fingerprint(find_files([str(path)]), *settings)

    assert name(first) == name(copy)
    assert name(first, "run") != name(first, "walk")
    copy.write_text('{"run":"b"}\n')
    assert name(first) != name(copy)


def test_pieces_are_grouped_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "PIECE_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"run":"a"}\n' * 100)
    pieces = cut(find_files([str(path)]), BY_RUN)
    groups = grouped(pieces, 250)
    assert [piece for group in groups for piece in group] == pieces
    assert [len(group) for group in groups] == [2, 2, 2, 2, 2, 2]
    assert grouped([], 10) == []
