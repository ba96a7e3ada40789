#!/usr/bin/env python3
"""Speaks the JSON lines of upstream's client conformance suite on behalf of `millstream.client`.

The suite starts this program, writes one command per line and reads one result per line. With `--asyncio` it is
`AsyncClient` that is tested. docs/client-conformance.md says how to run it.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bridge import Blocking, Loop  # beside this file, which the suite runs as a program

from millstream import __version__
from millstream.client import (
    AlreadyExists,
    AsyncClient,
    Batch,
    Client,
    ClientError,
    Conflict,
    ConnectionLost,
    NotFound,
    ProducerOptions,
    ProtocolError,
    Reader,
    Retry,
    SequenceConflict,
    Stream,
    StreamClosed,
)

Command = dict[str, Any]
Result = dict[str, Any]

RETRY = Retry(retries_max=5, delay_s=0.1, delay_max_s=2)
FEATURES = (
    "batching",
    "sse",
    "longPoll",
    "auto",
    "streaming",
    "dynamicHeaders",
    "retryOptions",
    "batchItems",
    "strictZeroValidation",
)

# Our names for what the suite's validation cases call otherwise.
THEIR_NAMES = {
    "retries_max": "maxRetries",
    "delay_max_s": "maxDelayMs",
    "delay_s": "initialDelayMs",
    "batch_bytes_max": "maxBatchBytes",
    "batch_messages_max": "maxBatchItems",
}


class Dynamic:
    """A header or parameter whose value is made anew for each request; remembers the last one."""

    def __init__(self, kind: str, initial: str = "") -> None:
        self.kind = kind
        self.last = initial
        self._count = 0

    def __call__(self) -> str:
        if self.kind == "counter":
            self._count += 1
            self.last = str(self._count)
        elif self.kind == "timestamp":
            self.last = str(int(time.time() * 1000))
        return self.last


LOOP = Loop() if "--asyncio" in sys.argv else None


class Adapter:
    def __init__(self) -> None:
        self.client: Client | Blocking | None = None
        self.url = ""
        self.headers: dict[str, Dynamic] = {}
        self.params: dict[str, Dynamic] = {}
        self.content_types: dict[str, str] = {}
        self.sequences: dict[tuple[str, str, int], int] = {}
        self.closed_by: set[tuple[str, str]] = set()

    def handle(self, command: Command) -> Result:
        kind = command["type"]
        method: Callable[[Command], Result] = getattr(self, "do_" + kind.replace("-", "_"))
        try:
            return {"type": kind, "success": True, **method(command)}
        except (ClientError, ValueError) as error:
            return {"type": "error", "success": False, "commandType": kind, "message": str(error), **described(error)}

    # --- set-up

    def do_init(self, command: Command) -> Result:
        self.__init__()  # type: ignore[misc]
        self.url = command["serverUrl"]
        self.connect()
        return {
            "clientName": "millstream",
            "clientVersion": __version__,
            "features": dict.fromkeys(FEATURES, True),
        }

    def connect(self) -> None:
        if self.client is not None:
            self.client.close()
        options: Any = {"headers": self.headers, "params": self.params, "retry": RETRY, "timeout_s": 30}
        if LOOP is None:
            self.client = Client(self.url, **options)
        else:
            self.client = Blocking(LOOP, AsyncClient(self.url, **options))

    def do_shutdown(self, command: Command) -> Result:
        assert self.client is not None
        self.client.close()
        if LOOP is not None:
            LOOP.stop()
        return {}

    def do_set_dynamic_header(self, command: Command) -> Result:
        self.headers[command["name"]] = Dynamic(command["valueType"], command.get("initialValue") or "")
        self.connect()
        return {}

    def do_set_dynamic_param(self, command: Command) -> Result:
        self.params[command["name"]] = Dynamic(command["valueType"])
        self.connect()
        return {}

    def do_clear_dynamic(self, command: Command) -> Result:
        self.headers.clear()
        self.params.clear()
        self.connect()
        return {}

    def dynamic_values(self) -> Result:
        sent: Result = {}
        if self.headers:
            sent["headersSent"] = {name: value.last for name, value in self.headers.items()}
        if self.params:
            sent["paramsSent"] = {name: value.last for name, value in self.params.items()}
        return sent

    # --- streams

    def stream(self, command: Command) -> Stream:
        assert self.client is not None
        found: Stream = self.client.stream(self.url + command["path"])
        return found

    def content_type(self, path: str) -> str:
        return self.content_types.get(path, "application/octet-stream")

    def do_create(self, command: Command) -> Result:
        data = command.get("data")
        created = self.stream(command).create(
            command.get("contentType") or "application/octet-stream",
            body=None if data is None else data.encode(),
            ttl_s=command.get("ttlSeconds"),
            expires_at=command.get("expiresAt"),
            closed=bool(command.get("closed")),
            headers=command.get("headers") or {},
        )
        self.content_types[command["path"]] = created.content_type
        return {"status": 201 if created.created else 200, "offset": created.offset}

    def do_connect(self, command: Command) -> Result:
        head = self.stream(command).head(headers=command.get("headers") or {})
        self.content_types[command["path"]] = head.content_type
        return {"status": 200, "offset": head.offset}

    def do_head(self, command: Command) -> Result:
        head = self.stream(command).head(headers=command.get("headers") or {})
        self.content_types[command["path"]] = head.content_type
        return {
            "status": 200,
            "offset": head.offset,
            "contentType": head.content_type,
            "streamClosed": head.closed,
            "ttlSeconds": head.ttl_s,
            "expiresAt": head.expires_at,
        }

    def do_append(self, command: Command) -> Result:
        data = base64.b64decode(command["data"]) if command.get("binary") else command["data"].encode()
        seq = command.get("seq")
        done = self.stream(command).append(
            data,
            content_type=self.content_type(command["path"]),
            seq=None if seq is None else str(seq),
            at_least_once=True,
            headers=command.get("headers") or {},
        )
        return {"status": 200, "offset": done.offset, **self.dynamic_values()}

    def do_close(self, command: Command) -> Result:
        data = command.get("data")
        done = self.stream(command).close(
            None if data is None else data.encode(),
            content_type=command.get("contentType") or self.content_type(command["path"]),
        )
        return {"finalOffset": done.offset}

    def do_delete(self, command: Command) -> Result:
        self.stream(command).delete(headers=command.get("headers") or {})
        self.content_types.pop(command["path"], None)
        return {"status": 200}

    # --- reading

    def do_read(self, command: Command) -> Result:
        live = command.get("live") or False
        reader = self.stream(command).read(
            command.get("offset") or "-1",
            live=live,
            idle_s=command.get("timeoutMs", 5000) / 1000 if live else None,
            headers=command.get("headers") or {},
        )
        with reader:
            chunks, cut = collect(reader, command, live)
        return {
            "status": 204 if live == "long-poll" and not chunks else 200,
            "chunks": chunks,
            "offset": reader.offset,
            "upToDate": reader.up_to_date,
            "streamClosed": reader.closed and not cut,
            **self.dynamic_values(),
        }

    # --- producers

    def do_idempotent_append(self, command: Command) -> Result:
        known = (command["path"], command["producerId"], command.get("epoch") or 0)
        return self.produce(
            command, [command["data"]], first_seq=self.sequences.get(known, 0), linger_s=0.0, in_flight_max=1
        )

    def do_idempotent_append_batch(self, command: Command) -> Result:
        """A new producer each time; the suite sends one batch twice to see that the server keeps it once."""
        in_flight = command.get("maxInFlight") or 1
        if in_flight > 1:  # the suite wants many requests on their way at once
            return self.produce(command, command["items"], linger_s=0.0, in_flight_max=in_flight, batch_messages_max=1)
        return self.produce(command, command["items"], linger_s=1.0, in_flight_max=1)

    def produce(self, command: Command, items: list[str], **settings: Any) -> Result:
        path, name, epoch = command["path"], command["producerId"], command.get("epoch") or 0
        with self.stream(command).producer(
            name,
            epoch=epoch,
            claim=bool(command.get("autoClaim")),
            resume=not command.get("autoClaim"),
            content_type=self.content_type(path),
            merge=True,
            headers=command.get("headers") or {},
            **settings,
        ) as producer:
            for item in items:
                producer.append(item.encode())
            producer.flush()
            self.sequences[path, name, producer.epoch] = producer.next_seq
        return {"status": 200}

    def do_idempotent_close(self, command: Command) -> Result:
        path, name, epoch = command["path"], command["producerId"], command.get("epoch") or 0
        if (path, name) in self.closed_by:
            return {"status": 200}
        data = command.get("data")
        producer = self.stream(command).producer(
            name,
            epoch=epoch,
            first_seq=self.sequences.get((path, name, epoch), 0),
            claim=bool(command.get("autoClaim")),
            content_type=self.content_type(path),
            headers=command.get("headers") or {},
        )
        done = producer.close_stream(None if data is None else data.encode())
        self.closed_by.add((path, name))
        return {"status": 200, "finalOffset": done.offset}

    def do_idempotent_detach(self, command: Command) -> Result:
        path, name = command["path"], command["producerId"]
        self.closed_by.discard((path, name))
        self.sequences = {key: seq for key, seq in self.sequences.items() if key[:2] != (path, name)}
        return {"status": 200}

    # --- validation

    def do_validate(self, command: Command) -> Result:
        target = command["target"]
        if target["target"] == "retry-options":
            defaults = Retry()
            Retry(
                retries_max=target.get("maxRetries", defaults.retries_max),
                delay_s=target.get("initialDelayMs", 100) / 1000,
                delay_max_s=target.get("maxDelayMs", 5000) / 1000,
                multiplier=target.get("multiplier", defaults.multiplier),
            )
        else:
            ProducerOptions(
                target.get("producerId", "producer"),
                epoch=target.get("epoch", 0),
                batch_bytes_max=target.get("maxBatchBytes", 1024),
                batch_messages_max=target.get("maxBatchItems", 10),
            )
        return {}


def collect(reader: Reader, command: Command, live: object) -> tuple[list[Result], bool]:
    """Chunks as the suite wants them, and whether their number cut the read short."""
    chunks: list[Result] = []
    limit = command.get("maxChunks") or 100
    for batch in reader.batches(empty=True):
        if batch:
            chunks.append({"data": shown(batch), "offset": batch.next_offset})
        if live and len(chunks) >= limit:
            return chunks, not batch.closed
        if live and batch.up_to_date and (command.get("waitForUpToDate") or (live == "long-poll" and not batch)):
            break
    return chunks, False


def shown(batch: Batch) -> str:
    if batch.is_json:
        return json.dumps(batch.json(), separators=(",", ":"), ensure_ascii=False)
    return batch.data.decode(errors="replace")


def described(error: Exception) -> Result:
    if isinstance(error, ValueError):
        message = str(error)
        for ours, theirs in THEIR_NAMES.items():
            message = message.replace(ours, theirs)
        return {"errorCode": "INVALID_ARGUMENT", "message": message}
    codes: list[tuple[type[Exception], str]] = [
        (StreamClosed, "STREAM_CLOSED"),
        (SequenceConflict, "SEQUENCE_CONFLICT"),
        (AlreadyExists, "CONFLICT"),
        (Conflict, "CONFLICT"),
        (NotFound, "NOT_FOUND"),
        (ProtocolError, "PARSE_ERROR"),
        (ConnectionLost, "NETWORK_ERROR"),
    ]
    status = getattr(error, "status", None)
    code = next((code for kind, code in codes if isinstance(error, kind)), "UNEXPECTED_STATUS")
    if status == 400:
        code = "INVALID_OFFSET"
    return {"errorCode": code, **({} if status is None else {"status": status})}


def main() -> None:
    adapter = Adapter()
    for line in sys.stdin:
        if line.strip():
            command = json.loads(line)
            print(json.dumps(adapter.handle(command)), flush=True)
            if command["type"] == "shutdown":
                return


if __name__ == "__main__":
    main()
