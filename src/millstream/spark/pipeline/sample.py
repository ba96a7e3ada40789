"""Sample events to try the pipeline with: agent runs and document edits, made from a seed, the same every time.

Runs are events of many kinds and sizes; the edits of a document are JSON merge patches. Both are heavy-tailed as in
life: most streams are short, a few are very long, and one reply in a hundred is twenty times the usual size.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

Event: TypeAlias = dict[str, Any]

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
WORKDAY_S = 9 * 3600
EVENTS_PER_STREAM_MAX = 2_000

WORDS = [
    "the",
    "river",
    "turns",
    "a",
    "wheel",
    "and",
    "grain",
    "becomes",
    "flour",
    "while",
    "water",
    "goes",
    "on",
    "its",
    "way",
    "under",
    "bridges",
    "past",
    "orchards",
    "into",
    "harbours",
    "where",
    "ships",
    "wait",
    "for",
    "wind",
    "report",
    "budget",
    "draft",
    "review",
    "meeting",
    "customer",
    "invoice",
    "deadline",
    "figure",
    "table",
    "summary",
    "result",
    "question",
    "answer",
    "plan",
    "step",
    "tool",
    "search",
    "file",
    "query",
    "index",
    "error",
    "retry",
    "done",
]
TASKS = ("Summarise the quarter", "Find the failing test", "Answer the customer", "Plan the trip", "Clean the table")
MODELS = ("small-2", "large-4", "large-4-long")
TOOLS = {"search_web": 0.4, "read_file": 0.3, "run_python": 0.2, "query_table": 0.1}
PEOPLE = ("ana", "bo", "chen", "dilek", "emeka", "freya")
SECTIONS = ("intro", "goals", "figures", "risks", "next-steps")
STATUSES = ("draft", "in review", "final")


@dataclass(frozen=True, slots=True)
class Sample:
    """Where the sample was written, and how much there is."""

    runs: Path
    edits: Path
    run_events: int
    edit_events: int


def write_sample(folder: Path, *, runs: int = 200, documents: int = 100, seed: int = 1) -> Sample:
    """Write `agent-runs.jsonl` and `document-edits.jsonl`, each in the order of time."""
    folder.mkdir(parents=True, exist_ok=True)
    run_path, edit_path = folder / "agent-runs.jsonl", folder / "document-edits.jsonl"
    return Sample(
        run_path,
        edit_path,
        _write_lines(run_path, agent_runs(runs, seed)),
        _write_lines(edit_path, document_edits(documents, seed)),
    )


def agent_runs(runs: int, seed: int = 1) -> Iterator[Event]:
    """Events of many runs, interleaved by time. `run` names the stream."""
    streams = (_one_run(f"run-{number:05d}", random.Random(f"run {seed} {number}")) for number in range(runs))
    return heapq.merge(*streams, key=_time)


def document_edits(documents: int, seed: int = 1) -> Iterator[Event]:
    """Edits of many documents, interleaved by time: `document` names the stream, `patch` is a JSON merge patch."""
    streams = (_one_document(f"doc-{number:04d}", random.Random(f"doc {seed} {number}")) for number in range(documents))
    return heapq.merge(*streams, key=_time)


def _one_run(name: str, chance: random.Random) -> Iterator[Event]:
    clock = _Clock(chance, step_s=4)
    model = chance.choice(MODELS)

    def event(kind: str, **more: Any) -> Event:
        return {"run": name, "at": clock.tick(), "type": kind, **more}

    yield event("run_started", agent=chance.choice(PEOPLE), model=model, task=chance.choice(TASKS))
    for step in range(_heavy_tailed(chance, usual=8)):
        yield event("model_reply", step=step, tokens=chance.randrange(20, 900), text=_prose(chance, usual=40))
        if chance.random() < 0.7:
            yield from _tool_call(event, step, chance)
        if chance.random() < 0.05:
            yield event("user_message", step=step, text=_prose(chance, usual=12))
    outcome = chance.choices(("succeeded", "failed", "cancelled"), (0.85, 0.1, 0.05))[0]
    yield event("run_finished", outcome=outcome, cost_cents=round(chance.uniform(0.1, 40), 2))


def _tool_call(event: Any, step: int, chance: random.Random) -> Iterator[Event]:
    tool = chance.choices(tuple(TOOLS), tuple(TOOLS.values()))[0]
    yield event("tool_call", step=step, tool=tool, arguments={"query": _prose(chance, usual=4)})
    if chance.random() < 0.08:
        yield event("tool_error", step=step, tool=tool, message="timed out after 30 s")
    else:
        yield event("tool_result", step=step, tool=tool, output=_prose(chance, usual=60))


def _one_document(name: str, chance: random.Random) -> Iterator[Event]:
    clock = _Clock(chance, step_s=40)
    people = chance.sample(PEOPLE, 2)

    def edit(**changes: Any) -> Event:
        at = clock.tick()
        return {"document": name, "at": at, "patch": {**changes, "edited_by": chance.choice(people), "edited_at": at}}

    yield edit(title=_prose(chance, usual=4).capitalize(), status="draft", sections={})
    for _ in range(_heavy_tailed(chance, usual=15)):
        section = chance.choice(SECTIONS)
        text = None if chance.random() < 0.04 else _prose(chance, usual=25)  # null takes a section away
        yield edit(sections={section: text})
        if chance.random() < 0.05:
            yield edit(status=chance.choice(STATUSES))


class _Clock:
    """The times of one stream: a start somewhere in a workday, then steps of about so many seconds."""

    def __init__(self, chance: random.Random, step_s: float) -> None:
        self._chance = chance
        self._step_s = step_s
        self._now = START + timedelta(days=chance.randrange(3), seconds=chance.triangular(0, WORKDAY_S, WORKDAY_S / 3))

    def tick(self) -> str:
        self._now += timedelta(milliseconds=1 + int(1000 * self._chance.expovariate(1 / self._step_s)))
        return self._now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _heavy_tailed(chance: random.Random, usual: int) -> int:
    return min(EVENTS_PER_STREAM_MAX, max(1, int(chance.lognormvariate(0, 1) * usual)))


def _prose(chance: random.Random, usual: int) -> str:
    words = _heavy_tailed(chance, usual) * (20 if chance.random() < 0.01 else 1)
    return " ".join(chance.choices(WORDS, k=words))


def _time(event: Event) -> str:
    at: str = event["at"]
    return at


def _write_lines(path: Path, events: Iterable[Event]) -> int:
    encode = msgspec.json.Encoder().encode
    count = 0
    with path.open("wb") as file:
        for event in events:
            file.write(encode(event) + b"\n")
            count += 1
    return count
