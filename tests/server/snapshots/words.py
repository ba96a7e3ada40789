"""Short words for what the tests of this folder do."""

import email
import email.policy
import time

SETTINGS = {"checkpoint_age_s": 0.3, "retention_every_s": 0.2, "snapshot_bytes_max": "8MiB"}
MIB = 1 << 20
EMPTY = ("application/octet-stream", b"")  # the first part of a bootstrap without a snapshot


def append(client, url, text, content_type="text/plain"):
    answer = client.post(url, content=text, headers={"content-type": content_type})
    assert answer.status_code == 204, answer.text
    return int(answer.headers["stream-next-offset"])


def publish(client, url, offset, body=b"state", content_type="application/x-state", **options):
    headers = {"content-type": content_type} if content_type else {}
    return client.put(f"{url}/snapshot/{offset}", content=body, headers=headers, **options)


def code(answer):
    return answer.json()["error"]["code"]


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return found


def hot_bytes(client):
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("millstream_hot_bytes ")))


def chunks(data, size=100_000):
    """A body without a known length."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


def parts(answer):
    """A bootstrap as Python's own mail parser reads it: (content type, bytes) of each part."""
    assert answer.status_code == 200, answer.text
    text = b"Content-Type: " + answer.headers["content-type"].encode() + b"\r\n\r\n" + answer.content
    message = email.message_from_bytes(text, policy=email.policy.HTTP)
    assert message.is_multipart()
    assert not message.defects
    return [(part.get_content_type(), part.get_payload(decode=True)) for part in message.iter_parts()]
