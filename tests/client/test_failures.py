"""Retries, credentials, redirects, cancellation: what a client does when things go wrong, and what it never does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tests.client.proxy import Fault
from tests.conftest import free_port

from millstream.client import (
    AsyncClient,
    BadRequest,
    ClientError,
    ConnectionLost,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Retry,
    Unauthorized,
    Unavailable,
)
from millstream.client import __all__ as public_names
from millstream.client import errors as client_errors
from millstream.client.retry import retry_after_s


def is_post(seen):
    return seen.method == "POST"


# --- when to try again


def test_waits_grow_up_to_a_limit_and_vary():
    retry = Retry(delay_s=1, delay_max_s=8, multiplier=2)
    for failures, most in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (10_000, 8)):
        waits = {retry.wait_s(failures) for _ in range(50)}
        assert most / 2 <= min(waits) <= max(waits) <= most
        assert len(waits) > 10
    assert retry.wait_s(1, "5") == 5
    assert retry.wait_s(1, "86400") == 60


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [("3", 3, 3), (None, 0, 0), ("soon", 0, 0), ("-5", 0, 0), ("", 0, 0), ("Mon, 01 Jan 2001 00:00:00 GMT", 0, 0)],
)
def test_retry_after(value, least, most):
    assert least <= retry_after_s(value) <= most


def test_retry_after_as_a_date():
    assert 8 <= retry_after_s(format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)) <= 10


@pytest.mark.parametrize(
    "options", [{"retries_max": -1}, {"delay_s": 0}, {"delay_s": -1}, {"delay_max_s": 0.01}, {"multiplier": 0.5}]
)
def test_retry_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Retry(**options)


def test_retries_end_with_the_last_error(through_proxy, proxy, name):
    proxy.add(Fault(count=100, status=503))
    with pytest.raises(Unavailable) as caught:
        through_proxy.stream(name).head()
    assert caught.value.status == 503
    assert len(proxy.requests) == 7


@pytest.mark.parametrize("status", [400, 404])
def test_what_is_final_is_not_tried_again(through_proxy, proxy, name, status):
    proxy.add(Fault(status=status))
    with pytest.raises((BadRequest, NotFound)):
        list(through_proxy.stream(name).read())
    assert len(proxy.requests) == 1


def test_nobody_there(make_client, name):
    client = make_client(f"http://127.0.0.1:{free_port()}", retry=Retry(retries_max=1, delay_s=0.01))
    with pytest.raises(ConnectionLost, match="Is the server running"):
        client.stream(name).head()


def test_a_server_that_never_answers(make_client, proxy, name):
    client = make_client(proxy.url, timeout_s=0.2, retry=Retry(retries_max=1, delay_s=0.01))
    proxy.add(Fault(count=5, hold_s=1))
    with pytest.raises(ConnectionLost, match="in time"):
        client.stream(name).head()
    assert len(proxy.requests) == 2


# --- appends without a producer


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=429)], ids=["503", "429"])
def test_an_append_is_repeated_where_nothing_happened(through_proxy, proxy, name, fault):
    stream = through_proxy.stream(name)
    stream.create("text/plain")
    proxy.add(Fault(**{**vars(fault), "matches": is_post}))
    stream.append("once")
    assert stream.read().read_all() == b"once"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(lose_answer=True),
        Fault(status=500),
        Fault(status=503, body=b'{"error":{"code":"outcome_unknown","message":"Perhaps."}}'),
    ],
    ids=["lost", "500", "unknown"],
)
def test_an_append_is_not_repeated_where_it_may_have_happened(through_proxy, proxy, name, fault):
    stream = through_proxy.stream(name)
    stream.create("text/plain")
    proxy.add(Fault(**{**vars(fault), "matches": is_post}))
    with pytest.raises(OutcomeUnknown, match="read before you send it again"):
        stream.append("perhaps")
    assert sum(map(is_post, proxy.requests)) == 1
    proxy.add(Fault(status=500, matches=is_post))
    stream.append("certainly", at_least_once=True)
    assert stream.read().read_all().endswith(b"certainly")


def test_deleting_and_closing_may_be_repeated(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("text/plain")
    proxy.add(Fault(lose_answer=True, matches=is_post))
    assert stream.close().closed
    proxy.add(Fault(lose_answer=True, matches=lambda seen: seen.method == "DELETE"))
    stream.delete()  # the second one found nothing, and that is fine
    with pytest.raises(NotFound):
        stream.delete()


# --- credentials


class Issuer:
    """Gives out tokens; the proxy takes only the newest."""

    def __init__(self, proxy) -> None:
        self.issued = 0
        self.valid = "token-1"
        proxy.check = lambda seen: seen.headers.get("authorization") == f"Bearer {self.valid}"

    def __call__(self):
        self.issued += 1
        return {"Authorization": f"Bearer token-{self.issued}"}

    def revoke(self) -> None:
        self.valid = f"token-{self.issued + 1}"


def test_credentials_are_refreshed_when_they_are_refused(make_client, proxy, name):
    issuer = Issuer(proxy)
    stream = make_client(proxy.url, credentials=issuer).stream(name)
    stream.create("application/json")
    stream.append(1)
    assert issuer.issued == 1
    issuer.revoke()
    stream.append(2)
    assert list(stream.read().json()) == [1, 2]
    assert issuer.issued == 2


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_credentials_are_refreshed_in_the_middle_of_a_tail(make_client, proxy, shared, name, live):
    issuer = Issuer(proxy)
    direct = make_client(shared.url).stream(name)
    direct.create("application/json", body=b"[1]")
    items = make_client(proxy.url, credentials=issuer).stream(name).tail(live=live).json()
    assert next(items) == 1
    issuer.revoke()
    proxy.cut_all()
    direct.append(2)
    direct.close()
    assert list(items) == [2]
    assert issuer.issued == 2


def test_credentials_are_refreshed_under_a_producer(make_client, proxy, name):
    issuer = Issuer(proxy)
    stream = make_client(proxy.url, credentials=issuer).stream(name)
    stream.create("application/json")
    with stream.producer(batch_messages_max=10, linger_s=0) as producer:
        for number in range(200):
            producer.append(number)
            if number == 100:
                producer.flush()
                issuer.revoke()
    assert list(stream.read().json()) == list(range(200))
    assert issuer.issued == 2


def test_credentials_that_stay_refused(make_client, proxy, name):
    proxy.check = lambda seen: False
    asked = []
    client = make_client(proxy.url, credentials=lambda: asked.append(1) or {"Authorization": "no"})
    with pytest.raises(Unauthorized):
        client.stream(name).head()
    assert len(proxy.requests) == len(asked) == 2
    with pytest.raises(Unauthorized):
        make_client(proxy.url).stream(name).head()


def test_a_callback_that_fails_fails_the_producer(make_client, proxy, name, shared):
    make_client(shared.url).stream(name).create("application/json")

    def broken():
        raise RuntimeError("no vault")

    producer = make_client(proxy.url, credentials=broken).stream(name).producer(content_type="application/json")
    producer.append(1)
    with pytest.raises(ClientError, match="no vault"):
        producer.flush()
    producer.close()


def test_credentials_stay_with_their_host(make_client, proxy, name):
    client = make_client(proxy.url, credentials=lambda: {"Authorization": "secret"})
    elsewhere = proxy.url.replace("127.0.0.1", "localhost")
    proxy.add(Fault(status=307, headers={"Location": f"{elsewhere}/v1/stream/{name}"}))
    with pytest.raises(NotFound):
        client.stream(name).head()
    assert [seen.headers.get("authorization") for seen in proxy.requests] == ["secret", None]


def test_redirects_are_followed_and_end(through_proxy, proxy, shared, name):
    stream = through_proxy.stream(name)
    stream.create("text/plain")
    here = {"Location": f"{shared.url}/v1/stream/{name}"}
    proxy.add(Fault(status=307, headers=here, matches=is_post))
    stream.append("over there")
    assert stream.read().read_all() == b"over there"
    proxy.add(Fault(count=99, status=307, headers={"Location": stream.url}))
    with pytest.raises(ClientError, match="circle"):
        stream.head()


def test_headers_and_parameters_may_be_functions(make_client, proxy, name):
    count = iter(range(100))
    client = make_client(proxy.url, headers={"X-Trace": lambda: str(next(count))}, params={"tenant": "a b"})
    for _ in range(3):
        assert not client.stream(name).exists()
    assert [seen.headers["x-trace"] for seen in proxy.requests] == ["0", "1", "2"]
    assert all("tenant=a" in seen.target for seen in proxy.requests)


def test_answers_can_be_compressed(make_client, proxy, name):
    stream = make_client(proxy.url, compress=True).stream(name)
    stream.create("text/plain", body="same " * 10_000)
    assert stream.read().read_all() == b"same " * 10_000
    assert "zstd" in proxy.requests[-1].headers["accept-encoding"]


# --- no connection is left behind


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_cancelling_leaves_no_connection(proxy, shared, name, live):
    async def tail_and_cancel() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = client.stream(name)
            await stream.create("application/octet-stream", body=b"there")
            started = asyncio.Event()

            async def follow() -> None:
                async for _ in stream.tail(live=live):
                    started.set()

            task = asyncio.create_task(follow())
            await started.wait()
            await asyncio.sleep(0.1)
            assert proxy.connections == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(proxy.wait_for_connections, 0)

    asyncio.run(tail_and_cancel())


def test_cancelling_a_producer_leaves_no_task(proxy, name):
    async def produce_and_cancel() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = client.stream(name)
            await stream.create("application/json")
            proxy.add(Fault(count=99, hold_s=5, matches=is_post))

            async def produce() -> None:
                async with await stream.producer() as producer:
                    await producer.append(1)
                    await producer.flush()

            task = asyncio.create_task(produce())
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(produce_and_cancel())


# --- servers without the extensions


def test_a_server_without_buckets_or_snapshots(through_proxy, proxy, name):
    taken_for_a_stream = {"Stream-Next-Offset": "0"}
    proxy.add(Fault(status=201, headers=taken_for_a_stream))
    with pytest.raises(NotSupported, match="no buckets"):
        through_proxy.bucket("agents").create()
    proxy.add(Fault(status=200, headers={**taken_for_a_stream, "Content-Type": "text/plain"}, body=b"text"))
    with pytest.raises(NotSupported):
        through_proxy.bucket("agents").get()
    proxy.add(Fault(status=201, headers=taken_for_a_stream))
    with pytest.raises(NotSupported, match="no snapshots"):
        through_proxy.stream(name).publish_snapshot("0", b"{}")
    through_proxy.stream(name).create("text/plain")
    proxy.add(Fault(status=404))
    with pytest.raises(NotSupported, match="no snapshots"):
        list(through_proxy.stream(name).bootstrap())
    proxy.add(Fault(status=404))
    with pytest.raises(NotFound):
        list(through_proxy.stream(name + "-missing").bootstrap())


# --- the package


def test_every_error_is_public_and_drawn_in_the_tree():
    kinds = {
        name for name, kind in vars(client_errors).items() if isinstance(kind, type) and issubclass(kind, ClientError)
    }
    assert kinds <= set(public_names)
    assert all(name in client_errors.__doc__ for name in kinds)


def test_the_client_needs_no_server():
    forbidden = ("uvloop", "httptools", "pyarrow", "typer", "millstream.server", "millstream.node")
    check = f"import sys, millstream.client; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
