"""A stream as a reader saw it, and whether it still is so. What is made from one holds as long as it does."""

from __future__ import annotations

import msgspec

from ..engine.machine import Machine
from ..engine.state import Stream
from ..model.facts import BucketSettings
from ..model.names import split_key


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """Everything that the answer to a read depends on, but for the reader."""

    stream: Stream
    changed: int  # the stream's last change then
    bucket: str
    settings: BucketSettings


class Sightings:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of(self, stream: Stream) -> Sighting | None:
        """None where time alone changes the answer: reading renews a lease, and its end comes nearer."""
        name = split_key(stream.key)[0]
        bucket = self._machine.find_bucket(name)
        if stream.lease is not None or bucket is None:
            return None
        return Sighting(stream, stream.changed, name, bucket.settings)

    def still_holds(self, seen: Sighting) -> bool:
        """Whether the stream is as it was seen; it is in use then."""
        machine = self._machine
        stream = seen.stream
        bucket = machine.buckets.get(seen.bucket)
        if (
            stream.changed != seen.changed
            or machine.streams.get(stream.key) is not stream  # it left memory: another may have come in its place
            or bucket is None
            or bucket.settings is not seen.settings
        ):
            return False
        stream.used = machine.coarse_s
        return True
