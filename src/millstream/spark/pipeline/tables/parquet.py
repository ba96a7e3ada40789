"""A table of plain Parquet files: what any tool can read, with a log of commits beside it.

    bucket=agents/date=2026-03-02/part-....parquet     committed files, for readers that list folders
    _millstream/commits/00000000000000000001.json      what each commit added, and how far every source has come
    _millstream/staged/...                             files that are not committed (yet); readers skip such names

A commit is the appearance of its file in `commits/`, made with link(2), which lets only one writer have a number. The
data files are moved to their places after that; a crash in between is repaired by whoever opens the table next.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .data_files import DataFile, Layout, sync_folder
from .table import TableError

HIDDEN = "_millstream"
STAGED_AGE_S = 86_400
VERSION = 1


@dataclass(frozen=True, slots=True)
class Commit:
    """The latest state of the table: how far each source has come, and the files that were added last."""

    number: int
    positions: dict[str, str]
    files: Sequence[DataFile]


class ParquetTable:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._commits = root / HIDDEN / "commits"
        self._staged = f"{HIDDEN}/staged/{uuid.uuid4().hex}"

    @classmethod
    def open(cls, root: Path) -> ParquetTable:
        table = cls(root)
        if root.exists() and not table._commits.exists() and any(root.iterdir()):
            raise TableError(f"{root} holds other files and is no table of ours; name an empty or a new folder.")
        table._commits.mkdir(parents=True, exist_ok=True)
        table._place(table._latest())
        table._remove_old_staged()
        return table

    @property
    def layout(self) -> Layout:
        return Layout(str(self._root), self._staged, partition_columns_in_files=False)

    def position(self, source: str) -> str | None:
        return self._latest().positions.get(source)

    def commit(self, source: str, after: str | None, until: str, files: Sequence[DataFile]) -> bool:
        while True:
            latest = self._latest()
            self._place(latest)
            if latest.positions.get(source) != after:
                return False
            following = Commit(latest.number + 1, {**latest.positions, source: until}, files)
            if self._publish(following, {"source": source, "after": after, "until": until}):
                self._place(following)
                shutil.rmtree(self._root / self._staged, ignore_errors=True)
                return True

    def _latest(self) -> Commit:
        numbers = (int(path.stem) for path in self._commits.glob("*.json"))
        number = max(numbers, default=0)
        if number == 0:
            return Commit(0, {}, ())
        found = json.loads(self._commit_path(number).read_text())
        if found["version"] != VERSION:
            raise TableError(f"{self._root} was written by a newer Millstream (version {found['version']}); update.")
        return Commit(number, found["positions"], [DataFile(**file) for file in found["files"]])

    def _publish(self, commit: Commit, about: dict[str, Any]) -> bool:
        """True if the number was still free."""
        record = {
            "version": VERSION,
            **about,
            "positions": commit.positions,
            "committed_at_ms": time.time_ns() // 1_000_000,
            "files": [asdict(file) for file in commit.files],
        }
        draft = self._commits / f".{uuid.uuid4().hex}"
        with draft.open("x") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, self._commit_path(commit.number))
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        sync_folder(self._commits)
        return True

    def _place(self, commit: Commit) -> None:
        """Move what a commit added to where readers find it. Doing it again, or twice at once, changes nothing."""
        for file in commit.files:
            staged = self._root / file.path
            place = self._root / file.partition_folder / file.name
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    staged.replace(place)
                except FileNotFoundError:
                    continue  # another process was faster
            elif not place.exists():
                raise TableError(f"{place} was committed and is missing; restore it, or export to a new folder.")

    def _remove_old_staged(self) -> None:
        """What a crashed export left, once no export can be still at it."""
        for folder in (self._root / HIDDEN / "staged").glob("*"):
            if folder.stat().st_mtime < time.time() - STAGED_AGE_S:
                shutil.rmtree(folder, ignore_errors=True)

    def _commit_path(self, number: int) -> Path:
        return self._commits / f"{number:020d}.json"
