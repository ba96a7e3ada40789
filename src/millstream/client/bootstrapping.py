"""Bootstrap: a stream's latest snapshot and everything after it, in one answer of many parts."""

from __future__ import annotations

from ..model.media import media_type
from .errors import ConnectionLost, NotSupported, ProtocolError
from .multipart import MultipartDecoder, Part, boundary_of
from .operations import Target, head, next_offset, succeed
from .steps import Emit, Finish, Flow, Sleep, call, next_chunk
from .values import BEGINNING, Batch
from .wire import STREAM_ID, STREAM_UP_TO_DATE, Answer, Request, extension_url

_ABSENT = frozenset({400, 404, 405, 501})


def emit_batches(target: Target) -> Flow[str]:
    """Emits the snapshot, then each update, then an empty batch with the offset to go on from, which is returned too.

    The batch of kind ``snapshot`` comes first and always, empty where there is none: whoever gets one starts anew.
    So a connection that breaks in the middle is no harm; it all comes again.
    """
    failures = 0
    while True:
        answer = yield from _open(target)
        try:
            yield from _parts(answer)
        except ConnectionLost:
            failures += 1
            if not target.retry.allows(failures):
                raise
            yield Sleep(target.retry.wait_s(failures))
            continue
        last = Batch(
            data=b"",
            next_offset=next_offset(answer),
            content_type="",
            up_to_date=answer.says(STREAM_UP_TO_DATE),
            closed=False,
            stream_id=answer.header(STREAM_ID),
        )
        yield Emit(last)
        return last.next_offset


def _open(target: Target) -> Flow[Answer]:
    request = Request("GET", f"{extension_url(target.url)}/bootstrap")
    answer = yield from call(request, target.retry, stream=True)
    if answer.status == 200 and media_type(answer.content_type) != "multipart/mixed":
        yield Finish()
        raise _not_supported(target)
    if answer.status in _ABSENT:
        # A server without the extension takes this for the URL of a stream that does not exist.
        yield from head(target, {})  # raises NotFound if the stream itself is missing
        raise _not_supported(target)
    return succeed(answer, request)


def _not_supported(target: Target) -> NotSupported:
    return NotSupported(
        f"{target.url} cannot be bootstrapped: the server has no snapshots. Read the stream from its beginning.",
        url=target.url,
    )


def _parts(answer: Answer) -> Flow[None]:
    decoder = MultipartDecoder(boundary_of(answer.content_type))
    stream_id = answer.header(STREAM_ID)
    kind = "snapshot"
    while not decoder.finished:
        chunk = yield from next_chunk()
        if not chunk:
            yield Finish()
            raise ConnectionLost(f"The bootstrap of {answer.url} broke off.", url=answer.url)
        for part in decoder.feed(chunk):
            yield Emit(_batch(part, kind, stream_id))
            kind = "update"
    yield Finish()
    if kind == "snapshot":
        raise ProtocolError(f"The bootstrap of {answer.url} has no parts.", url=answer.url)


def _batch(part: Part, kind: str, stream_id: str | None) -> Batch:
    # Only the whole bootstrap has an offset behind it; who stops inside must begin again.
    return Batch(
        part.data, BEGINNING, part.content_type, up_to_date=False, closed=False, stream_id=stream_id, kind=kind
    )
