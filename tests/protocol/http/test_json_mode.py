"""JSON mode: what is one message, what is many, and that not a byte of them changes (protocol section 7.1)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.commands import EMPTY_BODY
from millstream.protocol.http.json_mode import MESSAGES_MAX, join_messages, split_body

spaces = st.text(" \t\r\n", max_size=3).map(str.encode)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


def messages(body: bytes) -> list[bytes]:
    """The messages of a body that is good."""
    found = split_body(body)
    assert found.fault is None
    lengths = [len(found.payload)] if found.lengths is None else found.lengths
    assert sum(lengths) == len(found.payload)
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return [found.payload[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def fault(body: bytes) -> str:
    found = split_body(body)
    assert found.payload == b""
    assert found.fault is not None
    assert found.fault.code == "invalid_json"
    return found.fault.message


# --- one or many


@pytest.mark.parametrize("body", [b"1", b'"a"', b"null", b"true", b'{"event": "created"}', b"{}"])
def test_a_value_is_one_message(body):
    assert messages(body) == [body]
    assert split_body(body).lengths is None


def test_an_array_is_one_message_for_each_element():
    assert messages(b'[{"event": "a"}, {"event": "b"}]') == [b'{"event": "a"}', b'{"event": "b"}']


def test_exactly_one_level_is_flattened():
    assert messages(b"[[1,2], [3,4]]") == [b"[1,2]", b"[3,4]"]
    assert messages(b"[[[1,2,3]]]") == [b"[[1,2,3]]"]
    assert messages(b"[[]]") == [b"[]"]


def test_an_array_of_one_is_one_message():
    assert messages(b'[{"a": 1}]') == [b'{"a": 1}']
    assert split_body(b'[{"a": 1}]') == split_body(b'{"a": 1}')


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"[\r\n]"])
def test_an_empty_array_is_no_message_at_all(body):
    assert split_body(body) is EMPTY_BODY


# --- byte for byte


@pytest.mark.parametrize(
    "message",
    [
        *(b"1.0", b"1e999", b"-0", b"0.1e-7", b"1E+5", b"9" * 400, b"-" + b"9" * 5000),
        *(b'{"b":1,"a":2}', b'{"a":1,"a":2}', b'{ "a" : [ 1 , 2 ] }', b'{"a":\n 1}'),
        *(b'"\\u0041\\/\\ud83d\\ude00"', '"é😀"'.encode(), b'"\x7f"', b'"\\u0000"'),
    ],
)
def test_numbers_keys_spaces_and_escapes_stay_as_they_were_sent(message):
    assert messages(message) == [message]
    assert messages(b"[" + message + b"]") == [message]
    assert messages(b"[ 0 , " + message + b" , 1 ]") == [b"0", message, b"1"]


def test_white_space_around_messages_may_go():
    assert messages(b" \r\n\t 1 \n") == [b"1"]
    assert messages(b"[\n  1,\n  2\n]\n") == [b"1", b"2"]


@given(st.lists(st.tuples(spaces, values, spaces), min_size=1, max_size=5), st.sampled_from([None, 1]), spaces, spaces)
def test_the_elements_of_any_array_are_kept(elements, indent, before, after):
    texts = [json.dumps(value, indent=indent, ensure_ascii=False).encode() for _, value, _ in elements]
    parts = [left + text + right for text, (left, _, right) in zip(texts, elements, strict=True)]
    assert messages(before + b"[" + b",".join(parts) + b"]" + after) == texts


@given(values.filter(lambda value: not isinstance(value, list)), spaces, spaces)
def test_any_value_is_kept(value, before, after):
    text = json.dumps(value).encode()
    assert messages(before + text + after) == [text]


# RFC 8259 section 8.2 allows half of an escaped surrogate pair: JavaScript makes it of a string cut inside an emoji.
HALF = b'{"text":"half an emoji: \\ud83d"}'


@pytest.mark.parametrize(
    "half", [HALF, b'"\\ud83d"', b'"\\uDE00\\uD83D"', b'"\\ud83d\\n"', b'{"\\ud83d":1}', b'"\\uDBff x"']
)
def test_half_a_surrogate_pair_is_valid_json(half):
    assert messages(half) == [half]
    assert messages(b" \r\n" + half + b"\t ") == [half]
    assert messages(b"[" + half + b"]") == [half]
    assert messages(b"[ 1.0 ,\n" + half + b' , [ ], "\xc3\xa9" ] ') == [b"1.0", half, b"[ ]", b'"\xc3\xa9"']


def test_a_number_of_any_length_may_stand_beside_half_a_pair():
    long = b"9" * 5000
    assert messages(b'["\\ud83d",' + long + b"]") == [b'"\\ud83d"', long]


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"%b x",
            b"%b,1",
            b"[%b",
            b"[%b,]",
            b"[%b]]",
            b"[1 %b]",
            b"[%b,NaN]",
            b"[Infinity,%b]",
            b"[01,%b]",
            b"{%b:1}",
        ),
        *(
            b"[%b,'a']",
            b'[%b,"\n"]',
            b'[%b,"\\q"]',
            b'[%b,"\\ud8"]',
            b"[%b,\x0b1]",
            b"\xc2\xa0%b",
            b"[%b,1.]",
            b"\x0c%b",
        ),
    ],
)
def test_half_a_pair_excuses_nothing_else(body):
    assert "not valid JSON" in fault(body % HALF)


@pytest.mark.parametrize("opening", [b"[", b'{"\\ud83d":'])
def test_half_a_pair_deep_inside_harms_nobody(opening):
    assert "not valid JSON" in fault(opening * 100_000 + HALF)


# --- refusals


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"{", b"}", b"[", b"]", b"[1", b"[1,]", b"[,1]", b"[1 2]", b"1 2", b"{}{}", b"[]]", b"[1]x"),
        *(b"nul", b"True", b"NaN", b"Infinity", b"undefined", b"01", b"1.", b".5", b"+1", b"-", b"1e", b"0x1"),
        *(b'"', b'"\\q"', b'"\\u12g4"', b"'a'", b'"a\nb"', b'"\x00"', b'{"a"}', b'{"a":}', b'{"a":1,}', b"{a:1}"),
        *(b"{1:2}", b"\x0b1", b"\xc2\xa01", b"// comment\n1", b"\xef\xbb\xbf1"),
    ],
)
def test_what_is_not_json_is_refused(body):
    assert "not valid JSON" in fault(body)


@pytest.mark.parametrize(
    "body", [b'"\xff"', b'{"\xff":1}', b'["a","\xc3"]', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b"\xff", b'[1,"\xf8"]']
)
def test_what_is_not_utf8_is_refused(body):
    assert "not UTF-8" in fault(body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_nesting_beyond_reason_is_refused_and_harms_nobody(opening):
    assert "nested too deeply" in fault(opening * 200_000)


def test_nesting_within_reason_is_fine():
    deep = b"[" * 200 + b"]" * 200
    assert messages(deep) == [deep[1:-1]]


@given(
    st.binary(max_size=20)
    | st.text('[]{}",:0-1e.\\u ntf', max_size=12).map(str.encode)
    | st.lists(st.sampled_from(["[", "]", "{", "}", ",", ":", '"a"', '"\\ud83d"', "1", "-0.5e1", " "])).map(
        lambda parts: "".join(parts).encode()
    )
)
def test_any_bytes_are_what_another_parser_says(body):
    """Python's own parser is the judge, but for what it allows beyond RFC 8259."""
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        assert split_body(body).fault is not None
        return
    found = messages(body) if split_body(body) is not EMPTY_BODY else []
    assert [json.loads(message) for message in found] == (value if isinstance(value, list) else [value])


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# --- reading


def test_a_read_is_an_array():
    assert b"".join(join_messages([])) == b"[]"
    assert b"".join(join_messages([b"1"])) == b"[1]"
    assert b"".join(join_messages([b"1", b'{"a": 2}', b"[3]"])) == b'[1,{"a": 2},[3]]'


@given(st.lists(values, min_size=1, max_size=5))
def test_what_is_read_is_what_was_sent(sent):
    stored = messages(json.dumps(sent).encode())
    assert json.loads(b"".join(join_messages(stored))) == sent


# --- how much one append may hold


@pytest.mark.parametrize("message", [b"1", b"[]", b'"\\ud83d"', b'{"a":[1,2,3]}'])
def test_so_many_messages_are_taken_and_one_more_is_not(message):
    taken = split_body(b"[" + b",".join([message] * MESSAGES_MAX) + b"]")
    assert taken.fault is None
    assert taken.lengths == [len(message)] * MESSAGES_MAX
    refused = split_body(b"[" + b",".join([message] * (MESSAGES_MAX + 1)) + b"]")
    assert refused.fault.code == "too_many_messages"
    assert "several appends" in refused.fault.message


def test_what_is_inside_of_messages_does_not_count():
    body = b"[[" + b"1," * (2 * MESSAGES_MAX) + b'1],{"a":"' + b"," * MESSAGES_MAX + b'"}]'
    assert len(split_body(body).lengths) == 2


def test_a_large_array_that_is_broken_is_called_broken():
    body = b"[" + b"1," * 100 + b'["' + b"," * MESSAGES_MAX + b"]"
    assert split_body(body).fault.code == "invalid_json"
