"""Who may talk to a server that asks for no credentials: which Host headers, which web pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.server.guard import Guard, is_loopback
from millstream.server.settings import Settings, load_settings


def guard(**settings: object) -> Guard:
    return Guard(load_settings(None, {}, settings))


def with_origins(*origins: str) -> Guard:
    return guard(cors_origins=",".join(origins))


# --- Host


@pytest.mark.parametrize(
    "host",
    [
        *(b"localhost", b"localhost:4437", b"LocalHost:1", b"app.localhost", b"127.0.0.1", b"127.0.0.1:4437"),
        *(b"127.8.9.10:80", b"[::1]", b"[::1]:4437"),
    ],
)
def test_loopback_names_are_served(host):
    assert guard().allows_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *(b"example.com", b"example.com:4437", b"10.0.0.1", b"192.168.0.1:4437", b"[fd00::1]:4437", b"0.0.0.0"),
        *(b"localhost.example.com", b"127.0.0.1.example.com", b"notlocalhost", b"localhost.", b"xlocalhost:80"),
        *(b"[::1", b"::1", b"]", b"[]", b"", b"127.1", b"2130706433", b"\xff", b"localhost\xff", b"user@127.0.0.1"),
    ],
)
def test_other_names_are_not(host):
    """A page that points a name of its own at 127.0.0.1 comes with that name in its Host."""
    assert not guard().allows_host(host)


def test_names_the_operator_lists_are_served_on_any_port():
    guarded = guard(allowed_hosts="streams.example,Other.Example")
    assert guarded.allows_host(b"streams.example")
    assert guarded.allows_host(b"STREAMS.example:8080")
    assert guarded.allows_host(b"other.example")
    assert not guarded.allows_host(b"more.streams.example")


def test_an_ipv6_address_the_operator_lists_is_served():
    guarded = guard(allowed_hosts="[fd00::1]")
    assert guarded.allows_host(b"[fd00::1]:8080")
    assert guarded.allows_host(b"[FD00::1]")
    assert not guarded.allows_host(b"[fd00::2]:8080")


def test_an_open_server_takes_any_name():
    guarded = guard(listen="0.0.0.0:4437", insecure=True)
    assert guarded.allows_host(b"anything.example")


def test_an_answer_is_the_same_the_second_time():
    guarded = guard()
    for _ in range(2):
        assert guarded.allows_host(b"localhost:1")
        assert not guarded.allows_host(b"example.com")


def test_what_is_remembered_is_bounded():
    """Clients choose their Host; remembering all of them would be a leak."""
    guarded = guard()
    for number in range(3000):
        assert guarded.allows_host(b"h%d.localhost" % number)
        assert guarded.allows_origin(b"http://h%d.localhost" % number, b"localhost")
    assert len(guarded._known_hosts) <= 1024
    assert len(guarded._known_origins) <= 1024


# --- Origin


@pytest.mark.parametrize(
    "origin",
    [
        *(b"http://localhost", b"http://localhost:3000", b"https://LOCALHOST:3000", b"http://app.localhost:80"),
        *(b"http://127.0.0.1:5173", b"http://[::1]:3000"),
    ],
)
def test_loopback_pages_are_welcome(origin):
    assert guard().allows_origin(origin, b"127.0.0.1:4437")


@pytest.mark.parametrize(
    "origin",
    [
        *(b"https://example.com", b"http://localhost.example.com", b"http://127.0.0.1.example.com", b"null", b""),
        *(b"file://", b"file://localhost", b"chrome-extension://localhost", b"localhost", b"http:localhost", b"://"),
        *(b"http://", b"http://example.com:80@localhost.evil", b"http://[::1", b"\xff://localhost", b"*"),
    ],
)
def test_other_pages_are_not(origin):
    assert not guard().allows_origin(origin, b"127.0.0.1:4437")


def test_a_page_of_this_very_server_is_welcome():
    guarded = guard(allowed_hosts="streams.example")
    assert guarded.allows_origin(b"https://streams.example", b"streams.example")
    assert guarded.allows_origin(b"https://Streams.Example:8443", b"streams.example:8443")
    assert not guarded.allows_origin(b"https://streams.example:9000", b"streams.example:8443")
    assert not guarded.allows_origin(b"https://other.example", b"streams.example")


def test_an_origin_that_was_welcome_at_one_host_is_judged_anew_at_another():
    guarded = guard(allowed_hosts="a.example,b.example")
    assert guarded.allows_origin(b"https://a.example", b"a.example")
    assert not guarded.allows_origin(b"https://a.example", b"b.example")


def test_pages_the_operator_lists_are_welcome():
    guarded = with_origins("https://app.example", "http://dev.example:3000")
    assert guarded.allows_origin(b"https://app.example", b"localhost")
    assert guarded.allows_origin(b"HTTPS://APP.example", b"localhost")
    assert guarded.allows_origin(b"http://dev.example:3000", b"localhost")
    assert not guarded.allows_origin(b"http://app.example", b"localhost")
    assert not guarded.allows_origin(b"https://app.example:8443", b"localhost")
    assert not guarded.allows_origin(b"https://app.example.evil.com", b"localhost")


def test_a_star_opens_the_server_to_every_page():
    guarded = with_origins("*")
    assert guarded.allows_origin(b"https://anything.example", b"localhost")
    assert guarded.allows_origin(b"null", b"localhost")


# --- embedding


def test_other_origins_may_embed_only_when_some_are_let_in():
    assert guard().resource_policy == b"same-origin"
    assert with_origins("https://app.example").resource_policy == b"cross-origin"
    assert with_origins("*").resource_policy == b"cross-origin"


# --- loopback


def test_what_loopback_is():
    assert all(map(is_loopback, ["localhost", "a.localhost", "127.0.0.1", "127.255.255.254", "[::1]", "::1"]))
    assert not any(map(is_loopback, ["", "local", "localhost.com", "128.0.0.1", "0.0.0.0", "::", "1", "127.0.0.1.x"]))


@settings(deadline=None)
@given(st.binary(max_size=30), st.binary(max_size=30))
def test_any_bytes_are_judged_and_never_raise(host, origin):
    guarded = Guard(Settings())
    assert guarded.allows_host(host) in (True, False)
    assert guarded.allows_origin(origin, host) in (True, False)
    assert guarded.allows_origin(b"http://" + origin, host) in (True, False)
