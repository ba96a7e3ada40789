"""The built-in folds, how a state becomes a snapshot and back, and how a fold is found by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.pipeline.folds import (
    BUILT_IN,
    Fold,
    FoldError,
    concatenation,
    counters,
    find_fold,
    last_value,
    merged,
)

# The table of RFC 7396, appendix A: original, patch, result.
RFC_7396 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
keyed = st.fixed_dictionaries(
    {"key": st.sampled_from("abc"), "type": st.sampled_from("xy"), "value": st.none() | st.integers(0, 9)}
)


@pytest.mark.parametrize(("original", "patch", "result"), RFC_7396)
def test_merge_patch_does_what_the_rfc_says(original, patch, result):
    assert merged(original, patch) == result


def test_last_value_keeps_the_last_of_each_key_and_forgets_removed_ones():
    messages = [
        {"key": "a", "value": 1},
        {"key": "b", "value": 2},
        {"key": "a", "value": 3},
        {"key": "b", "value": None},
    ]
    assert last_value(None, messages) == {"a": {"key": "a", "value": 3}}


def test_last_value_by_another_member_keeps_messages_without_a_value():
    assert last_value(None, [{"id": 7, "text": "x"}], key="id") == {"7": {"id": 7, "text": "x"}}


def test_counters_count_or_add_up():
    messages = [{"type": "call", "tokens": 5}, {"type": "reply", "tokens": 2}, {"type": "call", "tokens": 1.5}]
    assert counters(None, messages) == {"call": 2, "reply": 1}
    assert counters(None, messages, amount="tokens") == {"call": 6.5, "reply": 2}


@pytest.mark.parametrize(
    "message", [{"type": "call", "tokens": "many"}, {"type": "call", "tokens": True}, {"type": "call"}, 7]
)
def test_what_cannot_be_counted_is_shown(message):
    with pytest.raises(FoldError, match=r"tokens|type"):
        counters(None, [message], amount="tokens")


def test_concatenation_joins_bytes_and_collects_values():
    assert concatenation(None, [b"ab", b"c"]) == b"abc"
    assert concatenation(b"ab", [b"c"]) == b"abc"
    assert concatenation(None, [1, [2]]) == [1, [2]]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@given(data=st.data())
def test_it_makes_no_difference_where_a_stream_is_cut(name, data):
    """One batch, many batches, or a snapshot in between: always the same state."""
    fold = find_fold(name)
    messages = data.draw(st.lists(keyed if name in ("last-value", "counters") else json_values, max_size=6))
    cut = data.draw(st.integers(0, len(messages)))
    at_once = fold.function(None, json.loads(json.dumps(messages)))
    first = fold.function(None, json.loads(json.dumps(messages[:cut])))
    if cut:
        snapshot, kind = fold.snapshot_of(first, "application/json")
        first = fold.state_of(snapshot, kind)
    in_two = fold.function(first, messages[cut:]) if cut < len(messages) else first
    if messages:
        assert in_two == at_once


# --- snapshots


def test_a_state_becomes_json_and_names_its_fold():
    fold = find_fold("counters", {"key": "kind"})
    snapshot, kind = fold.snapshot_of({"a": 1}, "application/json")
    assert (snapshot, kind) == (b'{"a":1}', 'application/json; fold="counters key=kind"')
    assert fold.state_of(snapshot, kind) == {"a": 1}


def test_bytes_keep_the_type_of_their_stream():
    fold = find_fold("concatenation")
    assert fold.snapshot_of(bytearray(b"ab"), "text/plain; charset=utf-8") == (
        b"ab",
        'text/plain; fold="concatenation"',
    )
    assert fold.snapshot_of(b"ab", "application/json")[1].startswith("application/octet-stream;")
    assert fold.state_of(b"ab", "text/plain") == b"ab"


def test_no_fold_goes_on_from_the_state_of_another():
    _, kind = find_fold("counters").snapshot_of({}, "application/json")
    with pytest.raises(FoldError, match="made by the fold 'counters'"):
        find_fold("merge-patch").state_of(b"{}", kind)


def test_a_snapshot_that_names_no_fold_is_taken_as_it_is():
    assert find_fold("merge-patch").state_of(b'{"a":1}', "application/json") == {"a": 1}


def test_a_state_that_nobody_could_read_is_refused():
    with pytest.raises(FoldError, match="neither bytes nor JSON"):
        Fold("odd", lambda state, messages: state).snapshot_of(object(), "text/plain")


# --- finding folds


def test_a_fold_of_ones_own_is_found_by_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_folds.py").write_text(
        "def total(state, messages, by=1):\n    return (state or 0) + len(messages)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    fold = find_fold("my_folds:total")
    assert fold.function(fold.function(None, [1, 2]), [3]) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("sums", {}, "counters"),
        ("no_such_module:total", {}, "PYTHONPATH"),
        ("json:no_such_function", {}, "no function"),
        ("counters", {"colour": "red"}, "colour"),
        ("counters", {"key": 'a"b'}, "plain ASCII"),
    ],
)
def test_a_fold_that_cannot_be_used_says_why(name, arguments, said):
    with pytest.raises(FoldError, match=said):
        find_fold(name, arguments)
