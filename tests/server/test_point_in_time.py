"""Reading from a time on: `?timestamp=`."""

import time
from datetime import UTC, datetime

import httpx
import pytest

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def client(module_server):
    running = module_server({"checkpoint_age_s": 0.3, "block_bytes": "1KiB"})
    with httpx.Client(base_url=running.url, timeout=10) as client:
        yield client


@pytest.fixture(scope="module", params=["hot", "cold", "both"])
def story(client, request):
    """A stream of five messages, and a moment before each."""
    path = f"/v1/stream/times/{request.param}"
    assert client.put(path, headers=TEXT).status_code == 201
    moments = []
    for number in range(5):
        time.sleep(0.005)
        moments.append(time.time_ns() // 1_000_000)
        time.sleep(0.005)
        client.post(path, content=b"<%d>" % number, headers=TEXT)
        if (request.param, number) in (("cold", 4), ("both", 2)):
            time.sleep(0.8)
    return path, moments


def test_a_read_starts_with_the_first_message_at_or_after_the_time(client, story):
    path, moments = story
    for number, moment in enumerate(moments):
        rest = "".join(f"<{later}>" for later in range(number, 5))
        assert client.get(path, params={"timestamp": moment}).text == rest
    assert client.get(path, params={"timestamp": 0}).text == "<0><1><2><3><4>"


def test_a_time_after_everything_is_the_tail(client, story):
    path, _ = story
    answer = client.get(path, params={"timestamp": "2999-01-01T00:00:00Z"})
    assert (answer.status_code, answer.text) == (200, "")
    assert answer.headers["Stream-Up-To-Date"] == "true"


def test_rfc_3339_names_the_same_moment(client, story):
    path, moments = story
    text = datetime.fromtimestamp(moments[2] / 1000, UTC).isoformat()
    assert client.get(path, params={"timestamp": text}).text == "<2><3><4>"


def test_live_reads_start_there_too(client, story):
    path, moments = story
    answer = client.get(path, params={"timestamp": moments[3], "live": "long-poll"})
    assert (answer.status_code, answer.text) == (200, "<3><4>")
    with client.stream("GET", path, params={"timestamp": moments[4], "live": "sse"}) as feed:
        lines = feed.iter_lines()
        assert [next(lines), next(lines)] == ["event: data", "data:<4>"]


@pytest.mark.parametrize("value", ["", "x", "-5", "1.5", "2026-13-01T00:00:00Z", "2026-01-01", "9" * 16])
def test_a_bad_time_is_400(client, story, value):
    answer = client.get(story[0], params={"timestamp": value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_timestamp")


def test_offset_and_timestamp_exclude_each_other(client, story):
    answer = client.get(story[0], params={"timestamp": 0, "offset": -1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_timestamp")


def test_a_missing_stream_is_404(client):
    assert client.get("/v1/stream/times/none", params={"timestamp": 0}).status_code == 404
