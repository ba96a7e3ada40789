"""Random stories for the machine: commands, the passing of time, and what the journal does in between.

Hypothesis chooses a seed and a length; the same seed with a smaller length is the beginning of the same story, which
is how a failure gets shorter. A story looks at the world while it is told: random producers and ETags would be
refused nearly always, and nothing would ever happen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import strategies as st
from tests.engine.world import JSON, START_MS, TEXT, World, batch, snapshot, transaction

from millstream.engine.state import Stream
from millstream.model.commands import (
    Append,
    Body,
    ChangeBucket,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    Expire,
    ForgetTransactions,
    Touch,
    Trim,
)
from millstream.model.errors import BadRequest, Refused
from millstream.model.etags import state_etag
from millstream.model.facts import BucketSettings, Producer
from millstream.model.positions import format_stream_id
from millstream.model.replies import Receipt

Answer = Receipt | tuple[type, str]
KEYS = ("shop/a", "shop/a", "shop/b", "other/a")
BROKEN = Body(fault=BadRequest("broken", code="invalid_json"))

seeds = st.integers(0, 2**32)
lengths = st.integers(1, 60)


class Story:
    """What happens to one world, step by step."""

    def __init__(self, world: World, seed: int, *, leases: bool = True) -> None:
        self.world = world
        self._random = random.Random(seed)
        self._leases = leases

    def steps(self, length: int) -> Iterator[Answer | None]:
        """Do one step after the other; what was answered, None for steps that ask nothing."""
        for index in range(length):
            yield self._write() if index < 2 else self._step()

    def play(self, length: int) -> list[Answer | None]:
        answers = list(self.steps(length))
        self.world.commit()
        return answers

    # -- choosing

    def _mostly(self, usual: object, *others: object) -> object:
        return self._random.choice(others) if self._random.random() < 0.25 else usual

    def _step(self) -> Answer | None:
        chance = self._random.random()
        if chance < 0.65:
            return self._write()
        if chance < 0.73:
            return self._upkeep()
        if chance < 0.77:
            return self._bucket()
        if chance < 0.81:
            return self._upload()
        if chance < 0.84:
            return self._transaction()
        if chance < 0.9:
            self.world.wait(self._random.choice([0, 1, 500, 1_000, 2_000, 20_000, -1, -700]))
        else:
            self._random.choice([self.world.commit_one, self.world.commit, self.world.seal])()
        return None

    def _write(self) -> Answer:
        key = self._random.choice(KEYS)
        exists = self._known(key) is not None
        if self._random.random() < (0.1 if exists else 0.8):
            return self._ask(self._creation(key))
        return self._ask(self._append(key))

    def _upkeep(self) -> Answer:
        key = self._random.choice(KEYS)
        stream = self.world.machine.find(key)
        number = 0 if stream is None else stream.number
        known = self._known(key)
        offset = 0 if known is None else self._random.randint(0, known.view().tail + 1)
        trims = self._random.random() < 0.7
        choices = [
            Delete(key, self._mostly(None, "*", '"stale"', self._tag(key))),
            Touch(key, number),
            Expire(key, number),
            Trim(key, offset, keeps_snapshot=trims),
            snapshot(offset, self._message(), key, trims=trims),
            snapshot(offset, b"", key, trims=trims),
        ]
        return self._ask(self._random.choice(choices))

    def _bucket(self) -> Answer:
        name = self._random.choice(["shop", "other", "spare", "spare", "spare", "_default"])
        settings = BucketSettings(ttl_s=self._random.choice([None, 30]) if self._leases else None)
        commands = [CreateBucket(name, settings), ChangeBucket(name, settings), DeleteBucket(name)]
        return self._ask(self._random.choice(commands))

    def _upload(self) -> Answer:
        key, parts = self._random.choice(KEYS), [self._message() for _ in range(self._random.randint(1, 3))]
        number = self.world.upload(*parts)
        answer = self._ask(Append(key, TEXT, Body(b"", [sum(map(len, parts))], None, number)))
        if not isinstance(answer, Receipt):
            self.world.drop_upload(number)
        return answer

    def _transaction(self) -> Answer:
        bucket = self._random.choice(["shop", "shop", "other", "spare"])
        if self._random.random() < 0.1:
            return self._ask(ForgetTransactions(bucket, "etl"))
        messages = {name: [self._message() for _ in range(self._random.randint(1, 3))] for name in ("a", "b")}
        create, version = self._random.random() < 0.5, self._random.randint(0, 9)
        return self._ask(transaction(version, messages, bucket, create=create))

    # -- commands

    def _creation(self, key: str) -> Create:
        ttl_s, expires_at_ms = None, None
        if self._leases:
            lifetimes = [(None, None), (None, None), (1, None), (30, None), (None, START_MS + 20_000)]
            ttl_s, expires_at_ms = self._random.choice(lifetimes)
        closed, needs_bucket = self._random.random() < 0.1, self._random.random() < 0.2
        conditions = self._conditions(key)
        return Create(
            *(key, self._content_type(), ttl_s, expires_at_ms, closed, self._body(Body()), *conditions, needs_bucket)
        )

    def _append(self, key: str) -> Append:
        closes = self._random.random() < 0.04
        body = Body() if closes and self._random.random() < 0.5 else self._body(BROKEN)
        return Append(key, self._content_type(), body, closes, *self._conditions(key))

    def _content_type(self) -> str | None:
        return self._mostly(TEXT, "Text/Plain; charset=utf-8", "TEXT/plain", JSON, None)

    def _body(self, odd: Body) -> Body:
        if self._random.random() < 0.1:
            return odd
        if self._random.random() < 0.7:
            return Body(self._message())
        return batch(*(self._message() for _ in range(self._random.randint(2, 3))))

    def _message(self) -> bytes:
        return self._random.randbytes(self._random.randint(1, 6))

    def _conditions(self, key: str) -> tuple[Producer | None, str | None, str | None]:
        if_match = None if self._random.random() < 0.9 else self._random.choice(["*", '"stale"', self._tag(key)])
        return self._producer(key), self._mostly(None, "a", "b", "c"), if_match

    def _producer(self, key: str) -> Producer | None:
        if self._random.random() < 0.4:
            return None
        name, stream = self._random.choice("ppqr"), self._known(key)
        state = None if stream is None else self.world.machine.producer_state(stream, name)
        epoch, last = state or (0, -1)
        usual = (epoch, last + 1)
        odd = [
            (epoch, last),
            (epoch, 0),
            (epoch + 1, 0),
            (epoch, last + 3),
            (epoch + 1, 0),
            (epoch + 1, 2),
            (epoch - 1, last),
        ]
        epoch, seq = self._mostly(usual, *odd)
        return Producer(name, max(0, epoch), max(0, seq))

    def _tag(self, key: str) -> str:
        stream = self._known(key)
        if stream is None:
            return '"none"'
        view = stream.view()
        return state_etag(format_stream_id(self.world.machine.incarnation, view.number), view.tail, view.closed)

    def _known(self, key: str) -> Stream | None:
        """The stream as decisions see it, if it is not deleted."""
        stream = self.world.machine.find(key)
        return None if stream is None or stream.view().deleted else stream

    def _ask(self, command: Command) -> Answer:
        try:
            return self.world.decide(command)
        except Refused as refusal:
            return type(refusal), refusal.code
