"""The staging process: decodes what clients stage and merges it for a commit, away from the serving loop and its GIL.

Reads jobs as JSON lines on standard input, answers each with a line on standard output, and ends when the server does.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from ..model.errors import BadRequest, MillstreamError, Reason, TransactionRefused
from ..storage.data_dir import DataDir
from ..storage.files import Files
from ..storage.objects import LocalObjects
from ..storage.transactions.arrow import ArrowRows, give_memory_back_to_the_system
from ..storage.transactions.merging import Merged, merge_parts
from ..storage.transactions.ndjson import NdjsonRows
from ..storage.transactions.parts import PartHead, Rows, write_part
from . import memory
from .upkeep_process import die_with, tell

_MEMORY_MAX = 3 << 30  # a compressed Arrow batch can grow without bounds; then the job fails, not the machine


class StagingAssignment(msgspec.Struct):
    """How the server starts this process."""

    data_dir: str
    message_bytes_max: int
    parent: int
    niceness: int = 0


class StageJob(msgspec.Struct, tag="stage"):
    """Make a part of a body."""

    body: str  # the object it lies in, as the client sent it
    is_arrow: bool
    number: int
    head: PartHead


class MergeJob(msgspec.Struct, tag="merge"):
    """Make a transaction's object of parts."""

    number: int
    parts: list[int]


Job = StageJob | MergeJob


class JobReport(msgspec.Struct, omit_defaults=True):
    head: PartHead | None = None
    merged: Merged | None = None
    bad_request: str = ""
    reasons: list[Reason] = []
    reason_count: int = 0
    failure: str = ""


_jobs = msgspec.json.Decoder(Job)


def main() -> int:
    assignment = msgspec.json.decode(sys.argv[1], type=StagingAssignment)
    die_with(assignment.parent)
    os.nice(assignment.niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_MAX, resource.RLIM_INFINITY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us in its own time
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    data_dir = DataDir(Path(assignment.data_dir))
    worker = Worker(LocalObjects(data_dir.objects, Files()), data_dir.objects, assignment.message_bytes_max)
    while line := sys.stdin.buffer.readline():
        report = worker.run(_jobs.decode(line))
        tell(report)
        memory.give_back()
    return 0


class Worker:
    """Runs jobs one after the other."""

    def __init__(self, objects: LocalObjects, root: Path, message_bytes_max: int) -> None:
        self._objects = objects
        self._root = root
        self._message_bytes_max = message_bytes_max

    def run(self, job: Job) -> JobReport:
        try:
            if isinstance(job, StageJob):
                return JobReport(head=self._stage(job))
            return JobReport(merged=merge_parts(self._objects, job.number, job.parts))
        except BadRequest as error:
            return JobReport(bad_request=error.message)
        except TransactionRefused as refusal:
            return JobReport(reasons=list(refusal.reasons), reason_count=refusal.count)
        except (MillstreamError, OSError, MemoryError) as error:
            return JobReport(failure=str(error) or type(error).__name__)

    def _stage(self, job: StageJob) -> PartHead:
        if job.is_arrow:
            give_memory_back_to_the_system()
        with (self._root / job.body).open("rb") as body:
            rows: Rows = (ArrowRows if job.is_arrow else NdjsonRows)(body, self._message_bytes_max)
            return write_part(self._objects, job.number, job.head, rows)


if __name__ == "__main__":
    sys.exit(main())
