"""The documentation is complete and true where a machine can tell: an undocumented command, setting, metric, fact,
header or error fails here, and so does an example that does not run or a link that leads nowhere."""

from __future__ import annotations

import http.client
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.storage.blocks import rows_of
from typer.core import TyperGroup

from millstream.cli.main import commands
from millstream.model import facts
from millstream.protocol.http import headers
from millstream.server.setting_kinds import Key
from millstream.server.settings import KEYS
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects
from millstream.storage.segments.block import Columns
from millstream.storage.segments.segment import FOLDER, SegmentBuilder, segment_name

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "millstream"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md", *sorted(DOCS.rglob("*.md"))]
FACTS = [kind for kind in vars(facts).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def page(name: str) -> str:
    return (DOCS / name).read_text()


def without(names: set[str], text: str) -> list[str]:
    """Which names the text does not mention, as whole words and in any case."""
    return sorted(name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.I))


def table_row(text: str, name: str) -> str:
    """The row whose first or second cell is this name."""
    found = re.search(rf"^\| (?:[^|]* \| )?`{name}` \|.*$", text, re.M)
    assert found, f"no table has a row for `{name}`"
    return found[0]


def code_block(text: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    assert found, f"there is no {language} block"
    return found[1]


# --- complete


def test_every_command_is_documented():
    named = set(command_names(commands(), "millstream"))
    assert without(named, "".join(path.read_text() for path in DOCS.glob("*.md"))) == []
    assert without({name for name in named if name.count(" ") == 1}, (ROOT / "README.md").read_text()) == []


def command_names(group: TyperGroup, before: str) -> Iterator[str]:
    """All commands as one types them, groups of commands among them."""
    for name, command in group.commands.items():
        yield f"{before} {name}"
        if isinstance(command, TyperGroup):
            yield from command_names(command, f"{before} {name}")


def setting_row(key: Key) -> str:
    default = key.shown(key.default)
    allowed = (
        key.allowed().removesuffix(", as a number of bytes or such as 64MiB").removesuffix(", the only one there is")
    )
    row = f"| `{key.name}` | {default and f'`{default}`'} | {allowed} | {key.description} |"
    return row.replace("* ", "\\* ")


def test_every_figure_of_the_benchmarks_is_explained():
    figures = re.findall(r'^    "(\w+)": \1\.measure,$', (ROOT / "bench" / "run.py").read_text(), re.MULTILINE)
    assert len(figures) > 10
    page = (ROOT / "bench" / "README.md").read_text()
    assert [name for name in figures if f"| `{name}` | `{name}.py` |" not in page] == []


def test_every_setting_is_documented_as_it_is():
    text = page("operating.md")
    missing = [row for row in map(setting_row, KEYS.values()) if row not in text]
    assert not missing, "please put these rows into the table of docs/operating.md:\n" + "\n".join(missing)


def test_every_metric_is_documented():
    made = re.findall(r'(\w+)\("(millstream_\w+)"', (SOURCE / "server" / "ops.py").read_text())
    assert len(made) > 15
    for kind, name in made:
        table_row(page("operating.md"), name + "_total" * kind.lower().startswith("counter"))


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_every_fact_is_documented_with_tag_and_fields(fact):
    text = page("formats.md")
    tag = fact.__struct_config__.tag
    if tag is None:  # a part of other facts
        assert f"`{fact.__name__}`" in text
        assert without(set(fact.__struct_fields__), text) == []
    else:
        row = table_row(text, fact.__name__)
        assert row.startswith(f"| {tag} |")
        assert re.findall(r"`(\w+)`", row)[1:] == list(fact.__struct_fields__)


def test_every_header_is_documented():
    spelled = {value.decode() for name, value in vars(headers).items() if name.isupper() and isinstance(value, bytes)}
    names = {name for value in spelled for name in value.split(", ")}
    for path in (*SOURCE.glob("protocol/http/*.py"), *SOURCE.glob("server/*.py")):
        names.update(re.findall(r"""(?:b["']|\\n|%b)([A-Z][A-Za-z]+(?:-[A-Za-z]+)*): """, path.read_text()))
    assert {"etag", "Stream-Id", "stream-ttl", "Access-Control-Allow-Origin"} <= names
    assert without(names, page("protocol.md")) == []


def test_every_error_code_over_http_is_documented():
    codes: set[str] = set()
    for folder in ("model", "engine", "node", "protocol/http", "server"):
        for path in SOURCE.glob(f"{folder}/**/*.py"):
            text = path.read_text()
            codes.update(re.findall(r'\bcode="(\w+)"', text))
            codes.update(re.findall(r'(?:respond_problem|_reject)\(\s*\d{3},\s*"(\w+)"', text))
    assert len(codes) > 30
    assert without(codes, page("protocol.md")) == []


# --- true


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere():
    broken = []
    for source in PAGES:
        prose = re.sub(r"^```.*?^```$", "", source.read_text(), flags=re.M | re.S)
        for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", prose):
            target = source.parent / path if path else source
            if not target.exists():
                broken.append(f"{source.relative_to(ROOT)}: {path}")
            elif anchor and anchor not in map(slug, re.findall(r"^#+ (.*)$", target.read_text(), re.M)):
                broken.append(f"{source.relative_to(ROOT)}: {path}#{anchor}")
    assert not broken, "\n".join(("These links lead nowhere:", *broken))


@pytest.fixture
def read_segments(tmp_path):
    """The reader of docs/formats.md: what it prints for these segments, line by line."""
    script = tmp_path / "read_segments.py"
    script.write_text(code_block(page("formats.md"), "python"))

    def run(*segments: Path) -> list[str]:
        command = [sys.executable, "-I", str(script), *map(str, segments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()

    return run


def test_the_example_reads_what_a_server_wrote(server, read_segments):
    running = server({"checkpoint_age_s": 0.05})
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)

    def ask(method: str, path: str, body: bytes = b"", kind: str = "text/plain") -> bytes:
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return text

    ask("PUT", "/v1/stream/a/words", b"first")
    ask("POST", "/v1/stream/a/words", b"second")
    ask("PUT", "/v1/stream/a/numbers", b"[1, 22, 333]", "application/json")
    written = re.search(rb"^millstream_journal_sequence .*$", ask("GET", "/metrics"), re.M)[0].split()[1]
    give_up = time.monotonic() + 10
    while b"millstream_catalog_sequence " + written not in ask("GET", "/metrics"):
        assert time.monotonic() < give_up, "there was no checkpoint"
        time.sleep(0.05)
    connection.close()
    running.stop()

    printed = [line.split(" ", 4) for line in read_segments(*(running.data_dir / "objects" / "segments").iterdir())]
    with sqlite3.connect(running.data_dir / "catalog.db") as catalog:
        names = dict(catalog.execute("SELECT number, key FROM streams"))
        extents = catalog.execute(code_block(page("formats.md"), "sql")).fetchall()
    catalog.close()
    found = {(names[int(stream)], int(offset), message) for stream, offset, _, _, message in printed}
    assert found == {
        ("a/words", 0, "b'first'"),
        ("a/words", 5, "b'second'"),
        ("a/numbers", 0, "b'1'"),
        ("a/numbers", 1, "b'22'"),
        ("a/numbers", 3, "b'333'"),
    }
    assert {extent[0] for extent in extents} == {"a/words", "a/numbers"}


def test_the_example_reads_every_width_of_column(tmp_path, read_segments):
    store = LocalObjects(tmp_path, Files())
    store.prepare(FOLDER)
    builder = SegmentBuilder(1, block_bytes=1 << 20)
    times = [1_000_000, 1_000_000, 1_300_000, 2**45]
    ids = [times[0] + 7, times[0] + 7, times[2] + 70_000, times[3]]
    columns = Columns([b"", b"x", b"y" * 300, b"z" * 70_000], times, ids, [0, 1, 2**35, 0], [5, 5, 6, 7])
    builder.add(2**40, 2**33, rows_of(columns))
    builder.write(store)
    printed = [line.split(" ", 4) for line in read_segments(tmp_path / segment_name(1))]
    assert [int(line[1]) - 2**33 for line in printed] == [0, 0, 1, 301]
    assert [int(line[2]) for line in printed] == times
    assert [line[3] for line in printed] == ["1000007-0", "1000007-1", "1370000-34359738368", "35184372088832-0"]
    assert [len(line[4]) - len("b''") for line in printed] == [0, 1, 300, 70_000]
