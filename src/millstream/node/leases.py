"""Read leases: who reads objects by their names keeps them from being deleted meanwhile.

A lease holds everything that existed when it was settled, not single objects: three numbers in place of a list. The
book is a small file, because the upkeep process must know of leases before it deletes, and because they outlive a
restart.

Order of safety: a lease holds everything at first; then the catalog is read; then the lease is settled to what that
reading can have found. Who deletes decides what is garbage before he looks for leases. Whichever comes first, an object
that the reader has found is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from ..model.errors import NotFound, TooMany, Unavailable

log = logging.getLogger(__name__)

FILE = "leases.json"
LEASES_MAX = 1000
_EVERYTHING = 1 << 62


class Lease(msgspec.Struct, frozen=True):
    id: str
    expires_at_ms: int
    segments_below: int = _EVERYTHING  # numbers of the objects that are held
    archives_below: int = _EVERYTHING
    bucket: str = ""
    transactions_below: int = _EVERYTHING


class Held(msgspec.Struct, frozen=True):
    """What no one may delete now: objects with lower numbers than these."""

    segments_below: int = 0
    archives_below: int = 0
    transactions_below: int = 0


class LeaseBook:
    """The server's side."""

    def __init__(self, folder: Path, *, lease_s: float, now_ms: Callable[[], int]) -> None:
        self._path = folder / FILE
        self._lease_ms = int(lease_s * 1000)
        self._now_ms = now_ms
        self._leases = {lease.id: lease for lease in _read(self._path)}

    def take(self, bucket: str) -> Lease:
        self._forget_expired()
        if len(self._leases) >= LEASES_MAX:
            raise TooMany(
                f"There are {LEASES_MAX} read leases. Give back those you no longer need, or wait.",
                code="too_many_leases",
            )
        return self._put(Lease(secrets.token_hex(8), self._now_ms() + self._lease_ms, bucket=bucket))

    def settle(self, lease: Lease, found: Held) -> Lease:
        """What was found lies in objects below these numbers."""
        return self._put(msgspec.structs.replace(lease, **msgspec.structs.asdict(found)))

    def renew(self, bucket: str, lease_id: str) -> Lease:
        self._forget_expired()
        return self.keep(self._lease(bucket, lease_id))

    def keep(self, lease: Lease) -> Lease:
        """Renew a lease that one holds oneself, late as it may be."""
        return self._put(msgspec.structs.replace(lease, expires_at_ms=self._now_ms() + self._lease_ms))

    @asynccontextmanager
    async def keeping(self, lease: Lease) -> AsyncIterator[None]:
        """A lease that one reads under oneself, for as long as that takes. Then it is given back."""
        keeper = asyncio.create_task(self._keep_on(lease), name="lease")
        try:
            yield
        finally:
            keeper.cancel()
            self.drop(lease)

    async def _keep_on(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            with contextlib.suppress(Unavailable):  # the log has it, and there is time for another try
                self.keep(lease)

    def drop(self, lease: Lease) -> None:
        """Give back a lease that may have expired meanwhile. Where the book cannot be written, it ends when its time
        is over."""
        if self._leases.pop(lease.id, None) is not None:
            try:
                self._write()
            except OSError as error:
                log.error("A read lease cannot be given back before it expires: %s", error)

    def give_back(self, bucket: str, lease_id: str) -> None:
        self.drop(self._lease(bucket, lease_id))

    def held(self) -> Held:
        return _held(self._leases.values(), self._now_ms())

    @property
    def count(self) -> int:
        return len(self._leases)

    def _lease(self, bucket: str, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None or lease.bucket != bucket:
            raise NotFound("There is no such lease, or it has expired. Ask for a new plan.", code="lease_not_found")
        return lease

    def _put(self, lease: Lease) -> Lease:
        former = self._leases.get(lease.id)
        self._leases[lease.id] = lease
        try:
            self._write()
        except OSError as error:
            if former is None:
                del self._leases[lease.id]
            else:
                self._leases[lease.id] = former
            log.error("A read lease cannot be written: %s", error)
            raise Unavailable(
                f"The read lease cannot be written ({error.strerror}), and without it what is read could be deleted "
                "meanwhile. Try again."
            ) from None
        return lease

    def _forget_expired(self) -> None:
        now = self._now_ms()
        for lease in list(self._leases.values()):
            if lease.expires_at_ms <= now:
                del self._leases[lease.id]

    def _write(self) -> None:
        temporary = self._path.with_name(f".tmp-{FILE}")
        temporary.write_bytes(msgspec.json.encode(list(self._leases.values())))
        os.replace(temporary, self._path)


def held_now(folder: Path, lease_ms: int) -> Held:
    """The upkeep process' side: what living leases hold."""
    return _held(_read(folder / FILE), lease_ms)


def _held(leases: Iterable[Lease], lease_ms: int) -> Held:
    living = [lease for lease in leases if lease.expires_at_ms > lease_ms]
    fields = Held.__struct_fields__
    return Held(*(max((getattr(lease, field) for lease in living), default=0) for field in fields))


def _read(path: Path) -> list[Lease]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Lease])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError:
        # It is not synced: after a power cut it may be empty. Readers whose objects are gone ask for a new plan.
        log.warning("The leases in %s cannot be read; there are none now.", path)
        return []
