"""Names of any bytes and the keys they live under."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.model.errors import BadRequest
from millstream.model.names import NAME_BYTES_MAX, key_of_flat_path
from millstream.protocol.s3p.names import key_of_name, name_of_key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"orders", "_s3p/orders"),
        (b"Orders", "_s3p/Orders"),
        (b"a-b_c.d~e", "_s3p/a-b_c.d~e"),
        (b"a/b", "_s3p/a%2Fb"),
        (b"a b%", "_s3p/a%20b%25"),
        (b"\x00\xff", "_s3p/%00%FF"),
        (b"streams", "_s3p/%73treams"),
        (b"__ds", "_s3p/%5F_ds"),
        (b".", "_s3p/%2E"),
        (b"a..b.c", "_s3p/a%2E%2Eb%2Ec"),
    ],
)
def test_a_name_lives_under_its_percent_encoded_form(name: bytes, key: str):
    assert key_of_name(name) == key
    assert name_of_key(key) == name or b"/" in name


@given(st.binary(min_size=1, max_size=340), st.binary(min_size=1, max_size=340))
def test_two_names_never_share_a_stream(one: bytes, other: bytes):
    assume(one != other)
    assert key_of_name(one) != key_of_name(other)


@given(st.binary(min_size=1, max_size=340))
def test_every_stream_can_be_reached_over_http(name: bytes):
    """In a URL the encoding is applied once more."""
    key = key_of_name(name)
    assert len(key.partition("/")[2]) <= NAME_BYTES_MAX
    assert key_of_flat_path(key.replace("%", "%25").encode()) == key


@given(st.binary(min_size=1, max_size=100))
def test_a_key_leads_back_to_a_name(name: bytes):
    key = key_of_name(name)
    assert key_of_name(name_of_key(key), buckets=True) == key


def test_with_buckets_a_slash_parts_bucket_and_stream():
    assert key_of_name(b"shop/orders", True) == "shop/orders"
    assert key_of_name(b"shop/a/b", True) == "shop/a/b"
    assert key_of_name("shop/größe".encode(), True) == "shop/größe"
    assert key_of_name(b"orders", True) == "_s3p/orders"
    assert key_of_name(b"_s3p/a%2Fb", True) == "_s3p/a%2Fb" == key_of_name(b"a/b")


@pytest.mark.parametrize(
    "name", [b"/x", b"x/", b"x/\xff", b"x/streams", b"x/..", b"x/\0", b"a..b/x", b"readyz/x", b"ds/x", b"__x/y", b"x/."]
)
def test_with_buckets_names_obey_the_rules_of_buckets(name: bytes):
    with pytest.raises(BadRequest) as caught:
        key_of_name(name, True)
    assert "bad stream name" in caught.value.message
