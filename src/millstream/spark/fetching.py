"""Fetches what a partition reads: blocks and chunks from the object store, the rest from the server."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..client.errors import ClientError, ConnectionLost
from ..model.errors import CorruptData
from ..storage.archive.arrow import record_batch
from ..storage.archive.chunk import Chunk
from ..storage.archive.rows import Rows, Selection, rows_of_chunk
from ..storage.files import Files
from ..storage.objects import LocalObjects
from ..storage.ports import ObjectStore
from ..storage.segments.block import OpenBlock, open_block
from .asking import Asker, Extent
from .errors import DataLoss, StoreOutOfReach
from .filtering import RowFilter
from .options import Server, Tier
from .plan import PlanRow, Store
from .planning import ArchivePiece, BulkPiece, SegmentPiece, Share, SnapshotPiece, Source
from .rows import Gatherer, Span, block_rows, plan_rows_batch, sized
from .schema import GAP, SNAPSHOT

log = logging.getLogger(__name__)

_RUN_BYTES = 8 << 20  # neighbours in one object are fetched together up to this
_BREAKS_MAX = 5
_StoredPiece = TypeVar("_StoredPiece", SegmentPiece, ArchivePiece)
_Opened = TypeVar("_Opened")


def open_store(store: Store) -> ObjectStore | None:
    """The plan's object store if it can be reached from here."""
    if store.kind != "fs" or not os.path.isabs(store.root) or not os.path.isdir(store.root):
        return None
    return LocalObjects(Path(store.root), Files())


class Fetcher:
    """Reads shares of one plan. `prefix` is the one that the plan was made with."""

    def __init__(self, server: Server, source: Source, prefix: str, tier: Tier, rows: RowFilter) -> None:
        self._server = server
        self._source = source
        self._prefix = prefix
        self._tier = tier
        self._rows = rows
        self._opened: ObjectStore | None = None  # in the process that reads

    def batches(self, share: Share) -> Iterator[pa.RecordBatch]:
        """The share's rows. The lease is kept up while they are read."""
        keeper = LeaseKeeper(self._server, self._source) if share.is_stored else nullcontext()
        with Asker(self._server) as asker, keeper:
            for piece in share.pieces:
                if isinstance(piece, SnapshotPiece):
                    yield self._snapshot(piece, asker)
            yield from self._kept(self._all(share, asker))

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in sized(batches):
            kept = self._rows.kept(batch)
            if kept.num_rows:
                yield kept

    def _all(self, share: Share, asker: Asker) -> Iterator[pa.RecordBatch]:
        if share.rows:
            yield plan_rows_batch(share.rows)
        pieces = share.pieces
        yield from self._segments([piece for piece in pieces if isinstance(piece, SegmentPiece)], asker)
        yield from self._archive([piece for piece in pieces if isinstance(piece, ArchivePiece)], asker)
        for after, until in _merged([piece for piece in pieces if isinstance(piece, BulkPiece)]):
            yield from self._bulk(asker, after, until)

    # -- from the object store ---------------------------------------------------------------------------

    def _segments(self, pieces: Sequence[SegmentPiece], asker: Asker) -> Iterator[pa.RecordBatch]:
        gatherer = Gatherer(self._server.bucket, self._source.incarnation)
        missing: list[SegmentPiece] = []
        for run in _runs(pieces):
            blocks = self._fetched(run, _checked_block)
            if blocks is None:
                missing += run
                continue
            for piece, block in zip(run, blocks, strict=True):
                span = Span(piece.after, piece.until)
                rows = block_rows(block, piece.stream, piece.content_type, piece.first_offset, span)
                batch = None if rows is None else gatherer.add(rows)
                if batch is not None:
                    yield batch
        rest = gatherer.flush()
        if rest is not None:
            yield rest
        yield from self._segments_over_http(missing, asker)

    def _archive(self, pieces: Sequence[ArchivePiece], asker: Asker) -> Iterator[pa.RecordBatch]:
        source = self._source
        for run in _runs(pieces):
            chunks = self._fetched(run, self._checked_chunk)
            if chunks is None:
                yield from self._archive_over_http(run, asker)
                continue
            for piece, rows in zip(run, chunks, strict=True):
                selection = Selection(piece.after, piece.until, self._prefix, 0, source.gone)
                yield record_batch(rows, selection, int(source.incarnation, 16))

    def _checked_chunk(self, piece: ArchivePiece, data: memoryview) -> Rows:
        rows = rows_of_chunk(Chunk(data))
        if rows.bucket != self._server.bucket:
            raise CorruptData(f"{piece.object} holds another bucket; perhaps it is another server's store.")
        return rows

    def _fetched(
        self, run: Sequence[_StoredPiece], opened: Callable[[_StoredPiece, memoryview], _Opened]
    ) -> list[_Opened] | None:
        """Pieces that lie side by side, read at once and opened; None where they must come over HTTP."""
        store, name, at = self._store(), run[0].object, run[0].at
        try:
            if store is None:
                raise FileNotFoundError(f"{self._source.store.root} is not a folder on this machine")
            data = memoryview(store.get_range(name, at, run[-1].at + run[-1].size - at))
            return [opened(piece, data[piece.at - at : piece.at - at + piece.size]) for piece in run]
        except (OSError, CorruptData) as error:
            if self._tier == "direct":
                raise StoreOutOfReach(
                    f"{name} cannot be read: {error}. With readTier=direct every executor must reach the server's "
                    "object store, and objects are kept only while the read's lease lasts. Set readTier to auto or "
                    "http, or run the query again."
                ) from error
            log.info("%s cannot be read from here (%s); the server is asked for it.", name, error)
            return None

    def _store(self) -> ObjectStore | None:
        if self._opened is None:
            self._opened = open_store(self._source.store)
        return self._opened

    # -- over HTTP ---------------------------------------------------------------------------------------

    def _segments_over_http(self, pieces: Iterable[SegmentPiece], asker: Asker) -> Iterator[pa.RecordBatch]:
        by_stream: dict[str, list[SegmentPiece]] = {}
        for piece in pieces:
            by_stream.setdefault(piece.stream, []).append(piece)
        for stream, blocks in by_stream.items():
            after, until = self._token(min(b.after for b in blocks)), self._token(max(b.until for b in blocks))
            for batch in asker.messages(Extent(after, until, stream)):
                yield batch.filter(_inside(batch, stream, blocks))

    def _archive_over_http(self, pieces: Sequence[ArchivePiece], asker: Asker) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from self._bulk(asker, self._token(piece.after), self._token(piece.until))

    def _bulk(self, asker: Asker, after: str, until: str) -> Iterator[pa.RecordBatch]:
        """A bulk read in commit order, resumed where its connection breaks.

        Rows of the last change seen are held back until the next one shows that they are complete.
        """
        breaks = 0
        while after != until:
            held: pa.RecordBatch | None = None
            try:
                for batch in asker.messages(Extent(after, until, self._prefix)):
                    if batch.num_rows == 0:
                        continue
                    whole, held = _parted(batch if held is None else _joined(held, batch))
                    if whole.num_rows:
                        yield whole
                        after = whole.column("position")[-1].as_py()
            except ConnectionLost:
                breaks += 1
                if breaks > _BREAKS_MAX:
                    raise
                time.sleep(0.2 * breaks)
                continue
            if held is not None:
                yield held
            return

    def _snapshot(self, piece: SnapshotPiece, asker: Asker) -> pa.RecordBatch:
        """A snapshot as a row; one that was superseded meanwhile is a loss."""
        found = asker.snapshot(piece.stream, piece.offset)
        content_type, value = found or ("", None)
        row = PlanRow(
            bucket=self._server.bucket,
            stream=piece.stream,
            offset=piece.offset if found else 0,
            next_offset=piece.offset,
            position=piece.position,
            content_type=content_type,
            kind=SNAPSHOT if found else GAP,
            value=value,
        )
        if found is None and self._rows.fail_on_gaps:
            raise DataLoss(
                f"The snapshot of {piece.stream!r} at offset {piece.offset} is gone: a newer one has replaced it since "
                "the read was planned. Start the read again, or set failOnDataLoss to false."
            )
        return plan_rows_batch([row])

    def _token(self, sequence: int) -> str:
        return f"{self._source.incarnation}.{sequence}"


class LeaseKeeper(AbstractContextManager["LeaseKeeper"]):
    """Renews a plan's lease from a thread for as long as it is entered: Spark may take its time between batches."""

    def __init__(self, server: Server, source: Source) -> None:
        self._server = server
        self._terms = source.lease
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="millstream-lease", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _keep(self) -> None:
        age_s = max(0.0, time.time() - self._terms.granted_at_s)
        wait_s = max(0.0, self._terms.renew_every_s - age_s)
        while not self._done.wait(wait_s):
            wait_s = self._terms.renew_every_s
            try:
                with Asker(self._server) as asker:
                    held = asker.renew(self._terms.url)
            except ClientError as error:
                log.warning("The lease of this read could not be renewed: %s It is tried again.", error)
                continue
            if not held:
                log.warning("The lease of this read is over; objects it needs may be gone.")
                return


def _checked_block(piece: SegmentPiece, data: memoryview) -> OpenBlock:
    """A block that is the one which was planned: a folder of the same name may belong to another server."""
    block = open_block(data, piece.number)
    ends = block.first_offset + len(block.payload)
    if ends != piece.next_offset or block.first_offset > piece.first_offset:
        raise CorruptData(f"{piece.object} holds another block; perhaps it is another server's store.")
    return block


def _runs(pieces: Sequence[_StoredPiece]) -> Iterator[list[_StoredPiece]]:
    """Pieces that lie side by side in one object, or share a block."""
    run: list[_StoredPiece] = []
    for piece in pieces:
        if run and (
            piece.object != run[-1].object
            or piece.at not in (run[-1].at, run[-1].at + run[-1].size)
            or piece.at + piece.size - run[0].at > _RUN_BYTES
        ):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _merged(pieces: Sequence[BulkPiece]) -> Iterator[tuple[str, str]]:
    """Ranges that follow each other, as one."""
    after = until = None
    for piece in pieces:
        if until is not None and piece.after != until and after is not None:
            yield after, until
            after = None
        after = piece.after if after is None else after
        until = piece.until
    if after is not None and until is not None:
        yield after, until


def _inside(batch: pa.RecordBatch, stream: str, blocks: Sequence[SegmentPiece]) -> pa.Array:
    """Which rows are messages of the stream that the blocks hold."""
    offsets = batch.column("offset")
    inside = pa.repeat(False, batch.num_rows)
    for block in blocks:
        held = pc.and_(pc.greater_equal(offsets, block.first_offset), pc.less(offsets, block.next_offset))
        inside = pc.or_(inside, held)
    is_message = pc.equal(batch.column("kind"), "message")
    return pc.and_(pc.and_(inside, is_message), pc.equal(batch.column("stream"), stream))


def _parted(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Complete changes, and the rows of the last one."""
    positions = batch.column("position")
    first = pc.index(positions, positions[-1]).as_py()
    return batch.slice(0, first), batch.slice(first)


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([first, second])
