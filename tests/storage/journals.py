"""Short words for the tests of the journal: batches to write, and what a journal says it holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millstream.model.codec import encode_facts
from millstream.model.facts import Appended
from millstream.storage.files import Files
from millstream.storage.journal import LocalJournal
from millstream.storage.ports import Batch

from .faulty_files import QuickFiles

NOW = 1_700_000_000_000


def appended(payload: bytes, offset: int = 0) -> Appended:
    return Appended(1, offset, NOW, 0, payload)


def open_journal(directory: Path, files: Files | None = None, file_bytes: int = 4096) -> LocalJournal:
    journal = LocalJournal(directory, files or QuickFiles(), file_bytes=file_bytes)
    journal.open(NOW)
    return journal


def batch_after(journal: LocalJournal, payloads: Iterable[bytes]) -> Batch:
    """The batch of appends that `write` would hand over now."""
    return Batch(journal.last_sequence + 1, NOW + journal.last_sequence, [appended(payload) for payload in payloads])


def write(journal: LocalJournal, *payloads: bytes) -> Batch:
    """One batch of appends, handed over but not synced."""
    batch = batch_after(journal, payloads)
    journal.write(batch.first_sequence, batch.at_ms, encode_facts(batch.facts))
    return batch


def commit(journal: LocalJournal, *payloads: bytes) -> Batch:
    batch = write(journal, *payloads)
    journal.sync()
    return batch


def held(directory: Path) -> list[Batch]:
    """Every batch that a fresh look at the journal finds."""
    journal = open_journal(directory)
    try:
        return list(journal.batches(0))
    finally:
        journal.close()


def journal_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
