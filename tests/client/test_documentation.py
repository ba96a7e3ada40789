"""What docs/client.md shows works as it stands, and what it must name is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client import ProducerOptions
from millstream.client import errors as client_errors
from millstream.client.streaming import ProducerSettings

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "client.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE + README, re.M | re.S)
ADAPTER = Path(__file__).parent / "conformance_adapter.py"


def test_the_examples_run_one_after_another(server):
    url = server().url
    shown = []
    for example in EXAMPLES:
        code = example.replace("http://127.0.0.1:4437", url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == "hello\n"
    assert "hello from asyncio" in shown[1]
    assert "appended run-1 [{'step': 1}, {'step': 2}]" in "".join(shown)


def test_every_error_and_setting_is_documented():
    names = {name for name, kind in vars(client_errors).items() if isinstance(kind, type)} - {"MillstreamError", "Any"}
    names |= set(ProducerSettings.__annotations__)
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    assert set(ProducerSettings.__annotations__) == set(ProducerOptions.__dataclass_fields__) - {"producer_id"}


@pytest.fixture
def adapter():
    process = subprocess.Popen([sys.executable, str(ADAPTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(**command):
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    assert ask(type="shutdown")["success"]
    process.communicate(timeout=10)


def test_the_adapter_of_the_public_suite_answers(server, adapter):
    assert adapter(type="init", serverUrl=server().url)["features"]["auto"]
    path = "/v1/stream/suite"
    assert adapter(type="create", path=path, contentType="application/json")["status"] == 201
    assert adapter(type="append", path=path, data='{"a":1}')["status"] == 200
    assert adapter(type="idempotent-append-batch", path=path, items=["2", "3"], producerId="p")["success"]
    read = adapter(type="read", path=path)
    assert [chunk["data"] for chunk in read["chunks"]] == ['[{"a":1},2,3]']
    assert adapter(type="head", path="/v1/stream/none")["errorCode"] == "NOT_FOUND"
