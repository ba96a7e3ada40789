"""A client that commits transactions: each until it knows, and so each is there exactly once, in all its streams."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from millstream.model.commands import CreateBucket
from millstream.model.errors import Conflict, MillstreamError, OutcomeUnknown, Unavailable
from millstream.node.clearing import clear_away
from millstream.node.staged_parts import BODIES
from millstream.node.transactions import Committed, PartName
from millstream.node.writer import Answer

from .clients import Client
from .oracle import DEALS, DEALS_BUCKET, TEXT, Deal

if TYPE_CHECKING:
    from .run import Run

Rows = list[tuple[str, bytes]]  # name of a stream, message


class Committing(Client):
    def __init__(self, run: Run, app: str) -> None:
        super().__init__(run)
        self.app = app
        self.version = 0
        self.parts: list[Rows] = []  # of the transaction that is not known to be committed
        self.was_tried = False
        self._bodies = 0

    def act(self) -> None:
        node, turn = self.run.node, self.rng.random()
        if not node.has_bucket(DEALS_BUCKET):
            self._submit(CreateBucket(DEALS_BUCKET), self._note_bucket)
        elif turn < 0.15:
            self.run.oracle.check_deals(node)
        elif turn < 0.25:
            self._perform(node.transactions.sweep(), self._note_sweep)
        elif turn < 0.35 and self.version > 2:
            stale = node.transactions.commit(DEALS_BUCKET, self.app, self.version - 2, [])
            self._perform(stale, self._note_stale)
        else:
            self._commit()

    def _note_bucket(self, answer: Answer) -> None:
        assert not isinstance(answer, Exception) or isinstance(answer, Unavailable | OutcomeUnknown | Conflict), answer

    def _commit(self) -> None:
        if not self.parts:
            self.version += 1
            self.parts, self.was_tried = self._some_parts(), False
        was_tried, self.was_tried = self.was_tried, True
        self._perform(self._stage_and_commit(), lambda result: self._note(result, was_tried))

    def _some_parts(self) -> list[Rows]:
        """Messages for some of the streams; those of one stream may come in two parts."""
        chosen = self.rng.sample(sorted(DEALS), self.rng.randint(1, len(DEALS)))
        rows: Rows = []
        firsts: list[int] = []
        for key in chosen:
            fillers = [self.rng.choice((0, 5, 40, 700)) for _ in range(self.rng.choice((1, 1, 2)))]
            messages = self.run.oracle.mint(fillers, json=False)
            firsts.append(self.run.oracle.number_of(messages[0]))
            rows += [(key.partition("/")[2], message) for message in messages]
        self.run.oracle.deals[self.app, self.version] = Deal(firsts)
        cut = self.rng.randint(0, len(rows))
        return [rows[:cut], rows[cut:]]

    async def _stage_and_commit(self) -> Committed:
        """As the routes do it: a body becomes a part, and goes; then the parts are committed."""
        node = self.run.node
        for number, rows in enumerate(self.parts):
            self._bodies += 1
            body = f"{BODIES}/{self.app}-{self._bodies}"
            try:
                node.objects.put(body, [_lines(rows)])
            except OSError as error:
                raise Unavailable(str(error), code="body_not_stored") from error
            try:
                await node.transactions.stage(DEALS_BUCKET, self.app, self.version, str(number), body, False)
            except MillstreamError:
                await clear_away(node.objects, [body])
                raise
            await clear_away(node.objects, [body])
        listed = [PartName(str(number)) for number in range(len(self.parts))]
        commit = node.transactions.commit
        return await commit(DEALS_BUCKET, self.app, self.version, listed, create=True, content_type=TEXT)

    def _note(self, result: Committed | Exception, was_tried: bool) -> None:
        if isinstance(result, Exception):
            assert isinstance(result, Unavailable | OutcomeUnknown), result
            return
        assert was_tried or not result.is_duplicate, f"{self.app} {self.version} was there before it was asked for"
        self.run.oracle.deals[self.app, self.version].is_known = True
        self.run.oracle.acknowledgements += 1
        if result.is_duplicate or self.rng.random() < 0.8:  # else as if the answer had been lost: once more
            self.parts = []

    def _note_stale(self, result: Committed | Exception) -> None:
        assert isinstance(result, Unavailable | OutcomeUnknown | Conflict), f"an old version was taken: {result}"

    def _note_sweep(self, result: Exception | None) -> None:
        assert result is None, result


def _lines(rows: Rows) -> bytes:
    told = [{"stream": stream, "value": base64.b64encode(message).decode()} for stream, message in rows]
    return "\n".join(map(json.dumps, told)).encode()
