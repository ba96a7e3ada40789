"""Getting a node's state back at start: the catalog, and what the journal has beyond it."""

from __future__ import annotations

from typing import NamedTuple

from ..engine.machine import Change, Machine
from ..engine.state import Stream
from ..model import facts
from ..model.errors import CorruptData
from ..storage.catalog import CatalogReader
from ..storage.data_dir import DataDir
from ..storage.files import Files
from ..storage.journal import JournalScan, LocalJournal
from .checkpoint import Checkpointer


def prepare_catalog(data_dir: DataDir, files: Files, journal: LocalJournal, block_bytes: int) -> int:
    """Make the catalog if there is none, and note whose it is; the incarnation that clients see."""
    checkpointer = Checkpointer(data_dir, files, block_bytes=block_bytes)
    incarnation = checkpointer.catalog.state("incarnation", 0)
    if incarnation == 0:
        incarnation = journal.incarnation
        with checkpointer.catalog.transaction():
            checkpointer.catalog.set_state("incarnation", incarnation)
    checkpointer.close()
    return incarnation


def check_agreement(data_dir: DataDir, scan: JournalScan) -> None:
    """Journal and catalog must be of one log, and the journal must hold what the catalog does not."""
    if scan.damage is not None:
        return  # opening the journal will say it better
    incarnation, applied, replay_from = 0, 0, 1
    if data_dir.catalog.exists():
        incarnation, applied, replay_from = _catalog_position(data_dir)
    if incarnation and not scan.files:
        raise CorruptData("There is a catalog, but no journal. Restore the journal files; nothing was changed.")
    if scan.files and incarnation not in (0, scan.files[0].header.incarnation):
        raise CorruptData("Catalog and journal belong to different data directories. Restore both from one backup.")
    if scan.files and scan.files[0].header.first_sequence > replay_from:
        raise CorruptData(
            f"The journal begins with sequence {scan.files[0].header.first_sequence}, but the catalog needs it from "
            f"{replay_from} on: journal files, or the catalog, are missing. Restore them; nothing was changed."
        )
    if scan.last_sequence < applied:
        raise CorruptData(
            f"The catalog stands at sequence {applied}, but the journal ends with {scan.last_sequence}: journal files "
            "are missing. Restore them; nothing was changed."
        )


def _catalog_position(data_dir: DataDir) -> tuple[int, int, int]:
    catalog = CatalogReader(data_dir.catalog)
    try:
        if not catalog.has_tables():
            return 0, 0, 1  # a crash inside the very first start
        applied = catalog.state("applied") or 0
        incarnation = catalog.state("journal_incarnation") or catalog.state("incarnation") or 0
        return incarnation, applied, catalog.state("replay_from") or applied + 1
    finally:
        catalog.close()


class Replayed(NamedTuple):
    """A batch that the catalog did not have."""

    first_sequence: int
    at_ms: int
    changes: list[Change]


def replay(machine: Machine, journal: LocalJournal, catalog: CatalogReader) -> list[Replayed]:
    """Apply what the catalog does not have."""
    applied = catalog.state("applied") or 0
    replay_from = catalog.state("replay_from") or applied + 1
    known: dict[int, Stream] = {}
    machine.next_sequence = applied + 1
    machine.timeline = catalog.timeline()
    replayed: list[Replayed] = []
    for batch in journal.batches(replay_from - 1):
        sequence = batch.first_sequence
        changes: list[Change] = []
        for fact in batch.facts:
            if sequence > applied:
                machine.replay(fact, sequence, batch.at_ms, known)
                number = sequence if isinstance(fact, facts.StreamCreated) else getattr(fact, "stream", 0)
                changes.append((known.get(number), fact))
            elif isinstance(fact, facts.PartStored | facts.PartsDropped):
                machine.apply_upload(fact, sequence)
            elif isinstance(fact, facts.Appended) and fact.upload is not None:
                machine.drop_upload(fact.upload)
            sequence += 1
        if changes:
            replayed.append(Replayed(sequence - len(changes), batch.at_ms, changes))
    machine.shift_ms = machine.timeline.shift_ms
    return replayed
