"""A look at a data directory from outside: what is there, whether it agrees, and a way out when the journal is damaged.

`examine` changes nothing. `cut` removes what cannot be read from the journal, after saving every removed byte.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..model.errors import MillstreamError
from ..model.facts import Appended, size_of
from .archive.object import archive_name, read_chunk
from .catalog import CatalogReader, CatalogWriter
from .data_dir import DataDir, check_stamp, lock_directory
from .files import Files
from .journal.file import new_incarnation, start_file
from .journal.reading import JournalReader
from .journal.record import FileHeader
from .journal.recovery import Damage, JournalScan, scan_journal
from .objects import LocalObjects
from .segments.block import decode_block
from .segments.segment import FOLDER, read_index, segment_name
from .transactions.objects import read_stored

REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Literal["ok", "warning", "error"]
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    healthy: bool
    findings: tuple[Finding, ...]


def examine(data_dir: Path) -> Report:
    """Check everything that can be checked; read-only."""
    place = DataDir(data_dir)
    if not place.stamp.exists():
        return _report([Finding("error", f"{data_dir} is not a data directory", "Check --data-dir.")])
    findings: list[Finding] = []
    if _is_locked(place):
        findings.append(
            Finding("warning", "a server is using the directory", "Stop it for a check of the journal's end.")
        )
    try:
        check_stamp(place.stamp.read_bytes())
        findings.append(Finding("ok", "the format is known"))
        findings += _examine_journal(place, Files())
        findings += _examine_catalog(place)
        findings += _examine_segments(place)
        findings += _examine_archive(place)
        findings += _examine_transactions(place, Files())
    except (MillstreamError, sqlite3.DatabaseError, OSError) as error:
        findings.append(Finding("error", str(error), "Restore the directory from a backup."))
    return _report(findings)


def cut(data_dir: Path) -> Report:
    """Make a damaged journal usable again: what lies behind the damage goes to `removed/`, nothing is deleted."""
    place = DataDir(data_dir)
    if not place.stamp.exists():
        return examine(data_dir)
    try:
        return _cut(place, Files())
    except (MillstreamError, sqlite3.DatabaseError) as error:
        return _report([Finding("error", str(error), "Nothing was cut. Restore the directory from a backup.")])


def _cut(place: DataDir, files: Files) -> Report:
    lock = lock_directory(place)
    try:
        scan = scan_journal(place.journal, files)
        if scan.damage is None:
            return examine_unlocked(place, lock, "there is nothing to cut")
        # First: sequences that are cut will be given again. A crash from here on costs positions, never confuses them.
        _start_incarnation(place, scan.files[0].header)
        saved = _save_and_truncate(place, files, scan, scan.damage)
        _continue_after_catalog(place, files, scan)
        what = f"{saved} bytes behind {scan.damage.path.name}:{scan.damage.at} were moved to {REMOVED}/"
        what += "; positions and Stream-Ids from before are refused from now on"
        return examine_unlocked(place, lock, what)
    finally:
        os.close(lock)


def examine_unlocked(place: DataDir, lock: int, what: str) -> Report:
    """A report on a directory we hold the lock of ourselves."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    report = examine(place.root)
    return _report([Finding("ok", what), *report.findings])


def _report(findings: list[Finding]) -> Report:
    return Report(all(finding.severity != "error" for finding in findings), tuple(findings))


def _is_locked(place: DataDir) -> bool:
    if not place.lock.exists():
        return False
    fd = os.open(place.lock, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _examine_journal(place: DataDir, files: Files) -> list[Finding]:
    scan = scan_journal(place.journal, files)
    if scan.damage is not None:
        where = f"{scan.damage.path.name} at byte {scan.damage.at}"
        return [
            Finding(
                "error",
                f"the journal is damaged: {where}: {scan.damage.reason}",
                "Restore the file from a backup, or run 'millstream doctor --cut': it keeps what comes before, "
                "loses what comes after, and saves the removed bytes first.",
            )
        ]
    findings = [Finding("ok", f"the journal reads to sequence {scan.last_sequence} ({len(scan.files)} files)")]
    if scan.torn_bytes:
        findings.append(
            Finding("warning", f"{scan.torn_bytes} bytes of a torn batch at its end", "The next start cuts them.")
        )
    return findings


def _examine_catalog(place: DataDir) -> list[Finding]:
    catalog = CatalogReader(place.catalog)
    try:
        verdict = catalog.integrity()
        if verdict != "ok":
            return [Finding("error", f"the catalog is damaged: {verdict}", "Restore it from a backup.")]
        applied = catalog.state("applied") or 0
        replay_from = catalog.state("replay_from") or applied + 1
        findings = [Finding("ok", f"the catalog has {catalog.stream_count()} streams, up to sequence {applied}")]
        scan = scan_journal(place.journal, Files())
        if scan.files and scan.files[0].header.first_sequence > replay_from:
            findings.append(
                Finding("error", f"journal files from sequence {replay_from} on are missing", "Restore them.")
            )
        if scan.damage is None and scan.last_sequence < applied:
            findings.append(
                Finding("error", f"the journal ends before the catalog's sequence {applied}", "Restore it.")
            )
        return findings
    finally:
        catalog.close()


def _examine_segments(place: DataDir) -> list[Finding]:
    """Every block of every segment against its checksum."""
    store = LocalObjects(place.objects, Files())
    findings: list[Finding] = []
    blocks = 0
    catalog = CatalogReader(place.catalog)
    known = set(catalog.segment_numbers())
    catalog.close()
    present = {number: segment_name(number) for number in store.numbers(FOLDER, segment_name)}
    findings += [
        Finding("error", f"segment {missing} is missing", "Restore it from a backup.")
        for missing in sorted(known - present.keys())
    ]
    for segment in sorted(known & present.keys()):
        read, damage = _examine_segment(store, present[segment])
        blocks += read
        findings += [Finding("error", what, "Restore the segment from a backup.") for what in damage]
    return [Finding("ok", f"{blocks} blocks in {len(known & present.keys())} segments read well"), *findings]


def _examine_segment(store: LocalObjects, name: str) -> tuple[int, list[str]]:
    """How many blocks read well, and what is wrong with each of the others."""
    good: set[int] = set()
    damage: dict[int, str] = {}
    block = b""  # streams that share a block follow each other
    at = 0
    try:
        for extent in read_index(store, name):
            if extent.at != at:
                at, block = extent.at, store.get_range(name, extent.at, extent.size)
            try:
                decode_block(block, extent.stream)
                good.add(at)
            except MillstreamError as error:
                place = f"{name} at byte {at}, stream {extent.stream} from offset {extent.first_offset}"
                damage.setdefault(at, f"{place}: {error.message}")
    except MillstreamError as error:
        return 0, [f"{name}: {error.message}"]
    return len(good - damage.keys()), list(damage.values())


def _examine_archive(place: DataDir) -> list[Finding]:
    """Every chunk of the archive against its checksum. Damage costs feeds, not streams: those are in segments."""
    store = LocalObjects(place.objects, Files())
    catalog = CatalogReader(place.catalog)
    chunks = catalog.archives.all_chunks()
    catalog.close()
    damaged: dict[int, str] = {}
    for chunk in chunks:
        try:
            read_chunk(store, chunk.archive, chunk.at, chunk.size).whole_facts()
        except (MillstreamError, OSError) as error:
            damaged[chunk.archive] = str(error)
    advice = "Restore it from a backup, or let it age: feeds and bulk reads of its time fail until then."
    return [
        Finding("ok", f"{len(chunks)} chunks of the archive were read"),
        *(Finding("warning", f"{archive_name(number)}: {error}", advice) for number, error in sorted(damaged.items())),
    ]


def _examine_transactions(place: DataDir, files: Files) -> list[Finding]:
    """What the journal has committed and the segments do not have yet must be in the transactions' objects."""
    if scan_journal(place.journal, files).damage is not None:
        return []
    catalog = CatalogReader(place.catalog)
    applied = catalog.state("applied") or 0
    catalog.close()
    store = LocalObjects(place.objects, files)
    checked = 0
    for batch in JournalReader(place.journal, files).batches(applied):
        for fact in batch.facts:
            if isinstance(fact, Appended) and fact.stored is not None:
                try:
                    read_stored(store, fact.stored, size_of(fact))
                except (MillstreamError, OSError) as error:
                    return [Finding("error", f"a transaction's messages cannot be read: {error}", _RESTORE_OBJECT)]
                checked += 1
    return [Finding("ok", f"{checked} appends of transactions read well")] if checked else []


_RESTORE_OBJECT = "Restore the object from a backup: it has acknowledged data that is nowhere else."


def _start_incarnation(place: DataDir, header: FileHeader) -> None:
    """Give the log another name outside. The files keep theirs, as they cannot all be changed at once."""
    catalog = CatalogWriter(place.catalog)
    try:
        with catalog.transaction():
            catalog.set_state("incarnation", new_incarnation())
            catalog.set_state("journal_incarnation", header.incarnation)
    finally:
        catalog.close()


def _save_and_truncate(place: DataDir, files: Files, scan: JournalScan, damage: Damage) -> int:
    """Take everything from the damage on out of the journal; how many bytes that were.

    All of it is saved, and the copies are durable, before the first byte goes.
    """
    removed = _make_removed(place, files)
    doomed = [(damage.path, damage.at), *((file.path, 0) for file in scan.files if file.path.name > damage.path.name)]
    saved = 0
    for path, at in doomed:
        fd = files.open_read(path)
        data = files.pread(fd, files.size(fd) - at, at)
        files.close(fd)
        copy = files.create(removed / f"{path.name}-from-{at}-{secrets.token_hex(4)}")
        files.pwrite(copy, data, 0)
        files.sync(copy)
        files.close(copy)
        saved += len(data)
    files.sync_directory(removed)
    for path, at in reversed(doomed):
        if at:
            fd = files.open_write(path)
            files.truncate(fd, at)
            files.sync(fd)
            files.close(fd)
        else:
            files.unlink(path)
    files.sync_directory(place.journal)
    return saved


def _make_removed(place: DataDir, files: Files) -> Path:
    removed = place.root / REMOVED
    files.make_directory(removed)
    files.sync_directory(place.root)
    return removed


def _continue_after_catalog(place: DataDir, files: Files, scan: JournalScan) -> None:
    """Where the catalog is ahead of what is left, the journal goes on behind the catalog: it has all before."""
    catalog = CatalogWriter(place.catalog)
    try:
        applied = catalog.state("applied", 0)
        if scan.last_sequence >= applied:
            return
        header: FileHeader = scan.files[0].header
        left = [file.path for file in scan.files if file.path.exists()]
        for path in left:
            files.link(path, place.root / REMOVED / f"{path.name}-{secrets.token_hex(4)}")
        files.sync_directory(place.root / REMOVED)
        for path in left:
            files.unlink(path)
        fd, _ = start_file(place.journal, files, header._replace(first_sequence=applied + 1), 0)
        files.close(fd)
        with catalog.transaction():
            catalog.set_state("replay_from", applied + 1)
    finally:
        catalog.close()
