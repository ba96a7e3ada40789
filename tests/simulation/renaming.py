"""A client that deletes a bucket and makes it again, while it and others commit transactions into it.

Every message says in which bucket it was staged, by the bucket's number. There must never be one in another.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from millstream.model.commands import CreateBucket, Delete, DeleteBucket
from millstream.model.errors import (
    Conflict,
    MillstreamError,
    NotFound,
    OutcomeUnknown,
    TransactionRefused,
    Unavailable,
)
from millstream.node.clearing import clear_away
from millstream.node.staged_parts import BODIES
from millstream.node.transactions import Committed, PartName

from .clients import Client
from .node import content
from .oracle import TEXT

if TYPE_CHECKING:
    from .run import Run

BUCKET = "names"
STREAMS = ("x", "y")
_ALLOWED = (Conflict, NotFound, OutcomeUnknown, TransactionRefused, Unavailable)


class Renaming(Client):
    def __init__(self, run: Run, app: str) -> None:
        super().__init__(run)
        self.app = app
        self.version = 0

    def act(self) -> None:
        turn = self.rng.random()
        if not self.run.node.has_bucket(BUCKET):
            self._submit(CreateBucket(BUCKET), self._note)
        elif turn < 0.5:
            self._perform(self._stage_and_commit(), self._note)
        elif turn < 0.85:
            self._look_at_names()
        else:
            number = self.run.node.machine.visible_bucket(BUCKET).number
            for stream in STREAMS:
                self.run.submit(Delete(f"{BUCKET}/{stream}"), self._note)
            self._submit_later(DeleteBucket(BUCKET, number), self._note)

    async def _stage_and_commit(self) -> Committed:
        node = self.run.node
        self.version += 1
        tag = b"<%d>" % node.machine.visible_bucket(BUCKET).number
        row = {"stream": self.rng.choice(STREAMS), "value": base64.b64encode(tag).decode()}
        body = f"{BODIES}/{self.app}-{self.version}"
        try:
            node.objects.put(body, [json.dumps(row).encode()])
        except OSError as error:
            raise Unavailable(str(error), code="body_not_stored") from error
        try:
            await node.transactions.stage(BUCKET, self.app, self.version, "0", body, False)
        except MillstreamError:
            await clear_away(node.objects, [body])
            raise
        await clear_away(node.objects, [body])
        commit = node.transactions.commit
        return await commit(BUCKET, self.app, self.version, [PartName("0")], create=True, content_type=TEXT)

    def _look_at_names(self) -> None:
        node = self.run.node
        number = node.machine.visible_bucket(BUCKET).number
        for name in STREAMS:
            stream = node.visible(f"{BUCKET}/{name}")
            staged_in = set(map(int, re.findall(rb"<(\d+)>", content(stream)))) if stream is not None else set()
            assert staged_in <= {number}, f"bucket {number} holds what was staged in {staged_in}"
            self.run.renamed += len(staged_in)

    def _note(self, result: Any) -> None:
        assert not isinstance(result, MillstreamError) or isinstance(result, _ALLOWED), result
