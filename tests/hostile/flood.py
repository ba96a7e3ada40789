"""Sends hostile inputs by the hundred thousand, and reads every answer: `python -m tests.hostile.flood PORT KIND SEED
COUNT`. What is sent follows from the seed. It prints how many answers of each status came, or what went wrong."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from . import wire
from .mutations import CORPUS, TOKENS, mutated, mutated_document, odd_extension_request, odd_request
from .wire import Ended, Wire, request

LAST = request("GET", "/healthz", "Connection: close")
ROOT = Path(__file__).parents[2]
WORKERS = 2
TOGETHER = 25  # well-formed requests that are sent in one go
DOCUMENTS = "/v1/stream/fuzz/flood"


class Failed(AssertionError):
    """An input that got a wrong answer, or none in time."""


def send_in_pieces(connection: Wire, chance: random.Random, data: bytes) -> None:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
    connection.send(*(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b))


def flood_heads(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    """Mutated requests, each on a connection of its own: whatever comes back is HTTP, and comes soon."""
    for number in range(count):
        data = mutated(chance, chance.choice(CORPUS), TOKENS, CORPUS)
        began, before = time.monotonic(), tally.total()
        with Wire(port) as connection:
            try:
                send_in_pieces(connection, chance, data + LAST)
                if number % 8 == 0:
                    connection.wait(0.01)  # for what takes a moment, such as an acknowledgement
                connection.end_sending()
                while True:
                    tally[str(connection.any_answer().status)] += 1
            except Ended:
                if connection.is_reset and tally.total() == before:
                    raise Failed(f"input {number}, {data!r}: thrown out without an answer") from None
            except (AssertionError, OSError, ValueError) as error:
                raise Failed(f"input {number}, {data!r}: {error!r}") from error
        if time.monotonic() - began > wire.WAIT_S:
            raise Failed(f"input {number}, {data!r} took {time.monotonic() - began:.1f} s")


def flood_values(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    flood_in_order(port, lambda: odd_request(chance), count, tally)


def flood_extensions(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    flood_in_order(port, lambda: odd_extension_request(chance), count, tally)


def flood_in_order(port: int, make: Callable[[], tuple[str, bytes]], count: int, tally: Counter[str]) -> None:
    """Well-formed requests with odd values, many on one connection: each gets its own answer, in order."""
    asked: deque[tuple[str, bytes]] = deque()
    made = 0
    while made < count or asked:
        while made < count and len(asked) < TOGETHER:
            asked.append(make())
            made += 1
        with Wire(port) as connection:
            connection.send(b"".join(data for _, data in asked))
            while asked:
                method, data = asked.popleft()
                try:
                    answer = connection.answer(method)
                except (AssertionError, OSError, ValueError) as error:
                    raise Failed(f"one of the first {made} inputs, {data!r}: {error!r}") from error
                tally[str(answer.status)] += 1
                if answer.headers.get("connection") == "close":
                    break  # it has said that it will not answer the rest: they go with the next


def flood_documents(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    """Documents that are not quite JSON, or just still are."""
    with Wire(port) as connection:
        for first in range(0, count, TOGETHER):
            bodies = [mutated_document(chance) for _ in range(min(TOGETHER, count - first))]
            connection.send(
                b"".join(request("POST", DOCUMENTS, "Content-Type: application/json", body=body) for body in bodies)
            )
            for body in bodies:
                status = connection.answer("POST").status
                tally[str(status)] += 1
                if status not in (204, 400):
                    raise Failed(f"{body!r} got {status}")


FLOODS: dict[str, Callable[[int, random.Random, int, Counter[str]], None]] = {
    "heads": flood_heads,
    "values": flood_values,
    "extensions": flood_extensions,
    "documents": flood_documents,
}


def flood(port: int, kind: str, seed: int, count: int) -> Counter[str]:
    tally = Counter[str]()
    try:
        FLOODS[kind](port, random.Random(f"{kind} {seed}"), count, tally)
    except Failed as error:
        error.add_note(f"{kind} of seed {seed}")
        raise
    return tally


def flood_from_processes(module: str, port: int, kind: str, seed: int, count: int) -> Counter[str]:
    """From several processes, as one could not keep a server busy."""
    command = [sys.executable, "-m", module, str(port), kind]
    started = [
        subprocess.Popen(
            [*command, str(seed + worker), str(-(-count // WORKERS))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(WORKERS)
    ]
    tally = Counter[str]()
    for process in started:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        tally += Counter(json.loads(out))
    return tally


if __name__ == "__main__":
    wire.WAIT_S = 30.0  # beside other work; what takes longer hangs
    print(json.dumps(flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
