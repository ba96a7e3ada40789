"""Stream names: which flat paths name a stream, which stream, and which paths are refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.model.errors import BadRequest
from millstream.model.names import NAME_BYTES_MAX, key_of_flat_path, split_key

KIB = b"x" * 1024


def refused(path: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        key_of_flat_path(path)
    assert caught.value.code == "bad_name"
    return caught.value.message


def key_or_refusal(path: bytes) -> str:
    try:
        return key_of_flat_path(path)
    except BadRequest as error:
        return f"refused: {error.message}"


# --- bucket and stream


def test_a_path_without_a_slash_lies_in_the_default_bucket():
    assert key_of_flat_path(b"orders") == "_default/orders"
    assert key_of_flat_path(b"_default/orders") == "_default/orders"


def test_the_first_slash_parts_bucket_and_stream():
    assert key_of_flat_path(b"shop/orders") == "shop/orders"
    assert key_of_flat_path(b"shop/orders/2024/q1") == "shop/orders/2024/q1"
    assert split_key("shop/orders/2024/q1") == ("shop", "orders/2024/q1")


def test_a_bucket_may_be_shorter_here_than_on_the_bucketed_prefix():
    assert key_of_flat_path(b"a/b") == "a/b"


def test_a_stream_name_may_start_and_end_with_a_slash():
    assert key_of_flat_path(b"shop//orders") == "shop//orders"
    assert key_of_flat_path(b"shop/orders/") == "shop/orders/"
    assert split_key("shop//orders") == ("shop", "/orders")


# --- percent-encoding


def test_the_path_is_split_before_it_is_decoded():
    assert key_of_flat_path(b"a%2Fb") == "_default/a/b"
    assert key_of_flat_path(b"shop/a%2Fb") == "shop/a/b"
    assert key_of_flat_path(b"shop/a%2fb") == "shop/a/b"


def test_an_encoded_slash_never_ends_a_bucket():
    assert "bucket" in refused(b"sh%2Fop/orders")


def test_an_encoded_name_and_a_plain_one_are_the_same_stream():
    assert key_of_flat_path(b"%6f%72%64%65%72%73") == key_of_flat_path(b"orders")
    assert key_of_flat_path(b"sh%6Fp/orders") == key_of_flat_path(b"shop/orders")


def test_text_outside_ascii_is_utf8_encoded_or_raw():
    assert key_of_flat_path(b"caf%C3%A9") == "_default/café"
    assert key_of_flat_path("café".encode()) == "_default/café"


def test_a_plus_is_a_plus():
    assert key_of_flat_path(b"a+b") == "_default/a+b"  # it is a space in queries only


@pytest.mark.parametrize("path", [b"100%", b"a%zzb", b"a%2", b"shop/%", b"%x/orders", b"a#b", b"shop#/orders", b"a/#"])
def test_what_only_looks_encoded_or_is_no_part_of_a_path_is_refused(path):
    assert "%25" in refused(path)
    assert key_of_flat_path(path.replace(b"%", b"%25").replace(b"#", b"%23")).endswith(path.decode().lstrip("/"))


def test_decoding_happens_once():
    assert key_of_flat_path(b"a%252Fb") == "_default/a%2Fb"
    assert key_of_flat_path(b"a%252e%252e") == "_default/a%2e%2e"


# --- refusals


def test_a_name_is_needed():
    assert "needs a name" in refused(b"")
    assert "needs a name" in refused(b"shop/")
    assert "bucket" in refused(b"/orders")


@pytest.mark.parametrize(
    "path", [b"..", b"a..b", b"shop/..", b"shop/../other", b"%2e%2e", b"shop/.%2E", b"shop/a/../b"]
)
def test_two_dots_in_a_name_are_refused(path):
    assert "'..'" in refused(path)


@pytest.mark.parametrize("path", [b"../orders", b"a..b/orders", b"%2E./orders"])
def test_two_dots_in_a_bucket_are_refused(path):
    assert "'..'" in refused(path)


def test_single_dots_are_fine_inside_of_a_segment():
    assert key_of_flat_path(b"v1.2/a.b.c") == "v1.2/a.b.c"
    assert key_of_flat_path(b"shop/.a/b.") == "shop/.a/b."


@pytest.mark.parametrize("path", [b".", b"%2E", b"shop/.", b"./orders", b"shop/a/./b", b"shop/a/%2e"])
def test_a_segment_that_is_a_dot_is_refused(path):
    """Whoever tidies URLs, as browsers do, asks for another stream."""
    assert "'.'" in refused(path)


@pytest.mark.parametrize("path", [b"a%00b", b"a\x00b", b"shop/%00", b"sh%00op/orders"])
def test_nul_is_refused(path):
    assert "NUL" in refused(path)


@pytest.mark.parametrize("path", [b"%ff", b"\xff", b"a%C3", b"shop/%ED%A0%80", b"%FF/orders"])
def test_a_path_must_be_utf8_once_decoded(path):
    assert "UTF-8" in refused(path)


@pytest.mark.parametrize("path", [b"streams", b"shop/streams", b"_default/streams", b"shop/s%74reams"])
def test_the_name_of_the_listing_is_reserved(path):
    assert "reserved" in refused(path)


@pytest.mark.parametrize("path", [b"shop/upstreams", b"upstreams", b"streams/orders", b"shop/streams/x"])
def test_names_that_only_resemble_the_listing_are_free(path):
    assert key_of_flat_path(path).endswith(path.decode())


@pytest.mark.parametrize("first", [b"ds", b"v1", b"ui", b"healthz", b"readyz", b"metrics", b"cluster", b"__ds", b"__x"])
def test_what_the_server_has_under_its_root_is_reserved(first):
    assert "reserved" in refused(first)
    assert "reserved" in refused(first + b"/orders")
    assert "reserved" in refused(b"%%%02X" % first[0] + first[1:] + b"/orders")
    for free in (first + b"-1", first + b"x", b"x" + first):
        if not free.startswith(b"__"):
            assert key_of_flat_path(free + b"/orders") == f"{free.decode()}/orders"
    assert key_of_flat_path(b"_default/" + first) == f"_default/{first.decode()}"


def test_a_name_may_have_one_kibibyte_and_no_more():
    assert NAME_BYTES_MAX == 1024
    assert key_of_flat_path(KIB) == f"_default/{KIB.decode()}"
    assert key_of_flat_path(b"shop/" + KIB) == f"shop/{KIB.decode()}"
    assert "1024 bytes" in refused(KIB + b"x")
    assert "1024 bytes" in refused(b"shop/" + KIB + b"x")


def test_a_bucket_may_have_one_kibibyte_and_no_more():
    assert key_of_flat_path(KIB + b"/orders") == f"{KIB.decode()}/orders"
    assert "1024 bytes" in refused(KIB + b"x/orders")


def test_the_limit_counts_bytes_after_decoding():
    assert key_of_flat_path(b"%41" * 1024) == "_default/" + "A" * 1024
    assert key_of_flat_path("é".encode() * 512) == "_default/" + "é" * 512
    assert "1024 bytes" in refused("é".encode() * 512 + b"x")


# --- properties

fragments = st.sampled_from(
    [
        *(b"a", b"Z9", b"_", b"-", b"/", b".", b"..", b"%", b"%2F", b"%00", b"%ff", b"\xc3"),
        *(b"streams", b"__ds", b"_default", b"ds", b"ui", b"readyz", b"#"),
    ]
)
paths = st.lists(fragments, max_size=6).map(b"".join)


@given(st.one_of(st.binary(max_size=40), paths))
@example(b"a" * 5000)
@example(b"%")
def test_any_path_names_a_stream_or_is_a_bad_request(path):
    try:
        bucket, name = split_key(key_of_flat_path(path))
    except BadRequest:
        return
    assert bucket not in ("", ".", "ds")
    assert not bucket.startswith("__")
    assert name not in ("", "streams")
    assert "\0" not in bucket + name
    assert ".." not in bucket
    assert ".." not in name


@example(b"a/__ds")
@given(paths)
@example(b"x" * 1024)
@example(b"x" * 1025)
@example(b"b/" + b"x" * 1022)
@example(b"b/" + b"x" * 1024)
def test_the_short_cut_for_plain_paths_agrees_with_the_long_way(path):
    """Encoding every byte but the slashes forces the long way: a plain path has no '%'."""
    encoded = b"/".join(b"".join(b"%%%02X" % byte for byte in part) for part in path.split(b"/"))
    assert key_or_refusal(path.replace(b"%", b"%25").replace(b"#", b"%23")) == key_or_refusal(encoded)


@given(st.text("ab/", min_size=1, max_size=6), st.text("ab/", min_size=1, max_size=6))
def test_two_paths_share_a_key_only_if_one_leaves_out_the_default_bucket(one, other):
    keys = {key_or_refusal(path.encode()) for path in (one, other, f"_default/{one}")}
    distinct = {one if "/" in one else f"_default/{one}", other if "/" in other else f"_default/{other}"}
    distinct |= {f"_default/{one}"}
    refusals = {key for key in keys if key.startswith("refused")}
    assert refusals or keys == distinct
