"""After a restart: does the server hold exactly what clients were told, and nothing that they were not?"""

from __future__ import annotations

import time
from collections.abc import Iterator

from .client import Answer, Client
from .ledger import Account, Attempt, Known, Ledger
from .messages import Label, Mint

RETIRED_BYTES = 4 << 20
RETIRED_CHECKS = 4  # of a stream that is closed and will not change any more


class Verifier:
    """Compares the server with the ledger, and settles in the ledger what had been unknown."""

    def __init__(self, ledger: Ledger, mint: Mint, port: int) -> None:
        self._ledger = ledger
        self._mint = mint
        self._client = Client(port)

    async def check_all(self) -> None:
        for account in list(self._ledger.accounts.values()):
            await self.check(account)
        self._client.close()

    async def check(self, account: Account) -> None:
        must_be_over = account.must_be_over()
        head = await self._client.ask("HEAD", account.path)
        if head.status == 404:
            assert account.exists is not Known.YES or account.may_be_over(), f"{account.path} is gone"
            account.expire() if account.may_be_over() else account.forget()
            return
        assert head.status == 200, (account.path, head)
        assert not must_be_over, f"{account.path} outlived its TTL"
        assert account.exists is not Known.NO, f"{account.path} should not be there: {head.headers}"
        account.created(head.stream_id)
        start = await self._check_snapshot(account, head)
        stored = await self._read(account, start)
        if stored is None:
            account.expire()
            return
        # A read renews too, but is answered before that is journaled: a kill in the next moment forgets it.
        account.used_before_s = time.monotonic()
        assert head.next_offset == start + len(stored), f"{account.path}: HEAD says {head.next_offset}"
        assert stored.startswith(bytes(account.seen)), f"{account.path}: a reader had been given other bytes"
        self._settle_appends(account, stored, start)
        await self._settle_closed(account, head)
        account.checks += 1
        if len(stored) > RETIRED_BYTES or (account.closed is Known.YES and account.checks > RETIRED_CHECKS):
            await self._retire(account)

    async def _retire(self, account: Account) -> None:
        """Streams that only grow in size or number would make every check slower than the last."""
        account.exists = Known.MAYBE
        answer = await self._client.ask_until_taken("DELETE", account.path)
        assert answer.status == 204, (account.path, answer)
        account.forget()

    async def _check_snapshot(self, account: Account, head: Answer) -> int:
        """The offset that the stream is kept from: that of the newest snapshot, if it has any."""
        if "stream-snapshot-offset" not in head.headers:
            assert account.published == 0, f"{account.path}: the snapshot at {account.published} is gone"
            return 0
        offset = int(head.headers["stream-snapshot-offset"])
        assert offset >= account.published, f"{account.path}: {account.published} was published, {offset} is newest"
        found = await self._client.ask("GET", f"{account.path}/snapshot/{offset}")
        assert (found.status, found.body) == (200, account.snapshots.get(offset)), f"{account.path}: {offset}"
        before = await self._client.ask("GET", f"{account.path}?offset=-1")
        if offset:
            assert (before.status, before.headers["stream-earliest-offset"]) == (410, f"{offset:020d}"), before
        account.forget_before(offset)
        return offset

    async def _read(self, account: Account, start: int) -> bytes | None:
        """The whole stream by catch-up reads, each starting where the last one ended."""
        stored = bytearray()
        while True:
            answer = await self._client.ask("GET", f"{account.path}?offset={start + len(stored)}")
            if answer.status == 404 and account.may_be_over():
                return None  # its time was up between two questions
            assert answer.status == 200, (account.path, answer)
            assert answer.stream_id == account.stream_id, account.path
            page = b"".join(self._mint.split_array(answer.body)) if account.json else answer.body
            stored += page
            assert answer.next_offset == start + len(stored), f"{account.path}: {answer.next_offset}, {len(stored)}"
            if "stream-up-to-date" in answer.headers:
                return bytes(stored)
            assert page, f"{account.path}: an empty read before the tail"

    def _settle_appends(self, account: Account, stored: bytes, start: int) -> None:
        present = list(_grouped(account, self._mint.labels(stored, account.json), start))
        for attempt, end in present:
            assert attempt.happened is not Known.NO, f"{account.path}: {attempt.labels[0]} was refused"
            attempt.acknowledge(end)
        found = {id(attempt) for attempt, _ in present}
        for attempt in account.attempts.values():
            if id(attempt) in found:
                continue
            assert attempt.happened is not Known.YES, f"{account.path}: {attempt.labels[0]} is lost"
            attempt.happened = Known.NO
        _check_order(account, [attempt for attempt, _ in present])

    async def _settle_closed(self, account: Account, head: Answer) -> None:
        if head.is_closed:
            assert account.closed is not Known.NO, f"{account.path} closed itself"
            account.closed = Known.YES
            headers = {"Content-Type": account.content_type}
            answer = await self._client.ask_until_taken("POST", account.path, b"late", headers)
            assert (answer.status, answer.is_closed) == (409, True), (account.path, answer)
        else:
            assert account.closed is not Known.YES, f"{account.path} is open again"
            account.closed = Known.NO
        closing = [attempt for attempt in account.attempts.values() if attempt.closes]
        happened = [attempt for attempt in closing if attempt.happened is Known.YES]
        assert head.is_closed or not happened, f"{account.path}: the closing message is there, but it is open"


def _grouped(account: Account, labels: Iterator[tuple[Label, bytes]], start: int) -> Iterator[tuple[Attempt, int]]:
    """Whole appends and where each ends; a batch of which something is missing fails."""
    end = start
    found: set[int] = set()
    for label, message in labels:
        attempt = account.attempts.get((label.author, label.number))
        assert attempt is not None, f"{account.path}: {label} stands there alone, or was never sent"
        assert id(attempt) not in found, f"{account.path}: {label} is there twice"
        found.add(id(attempt))
        size = len(message)
        for expected in attempt.labels[1:]:
            following = next(labels, None)
            assert following is not None, f"{account.path}: half a batch, without {expected}"
            assert following[0] == expected, f"{account.path}: half a batch, without {expected}"
            size += len(following[1])
        end += size
        yield attempt, end


def _check_order(account: Account, present: list[Attempt]) -> None:
    """Each author's messages in the order they were sent."""
    last: dict[str, int] = {}
    for attempt in present:
        first = attempt.labels[0]
        assert last.get(first.author, -1) < first.number, f"{account.path}: {first} is out of order"
        last[first.author] = attempt.labels[-1].number
