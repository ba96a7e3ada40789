"""Folds: what a stream's messages add up to. Pure functions `(state, messages) -> state`, and how a state is kept.

A fold is called with one batch of messages after another, so a stream of any length folds in the memory of one batch
and one state. Messages are values on JSON streams and bytes on all others. The first state is None; a fold may change
the state that it was given and return it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ...model.errors import MillstreamError
from ...model.media import DEFAULT_CONTENT_TYPE, is_json

Message: TypeAlias = Any
State: TypeAlias = Any
FoldFunction: TypeAlias = Callable[[State, Sequence[Message]], State]

JSON = "application/json"


class FoldError(MillstreamError):
    """A fold cannot be used, or a stream cannot be folded by it."""

    code = "fold"


# --- the built-in ones


def last_value(state: State, messages: Sequence[Message], *, key: str = "key") -> State:
    """The last message of each key. A message whose `value` is null takes its key away."""
    latest: dict[str, Message] = {} if state is None else state
    for message in messages:
        name = _text(_member(message, key))
        latest.pop(name, None)  # so that the keys stand in the order of their last change
        if message.get("value", True) is not None:
            latest[name] = message
    return latest


def merge_patch(state: State, messages: Sequence[Message]) -> State:
    """The document that JSON merge patches (RFC 7396) add up to, in the order of the stream."""
    for patch in messages:
        state = merged(state, patch)
    return state


def counters(state: State, messages: Sequence[Message], *, key: str = "type", amount: str | None = None) -> State:
    """How many messages have each value of the member `key`; with `amount`, the sum of that member instead."""
    counts: dict[str, float] = {} if state is None else state
    for message in messages:
        name = _text(_member(message, key))
        step = 1 if amount is None else _number(_member(message, amount), amount)
        counts[name] = counts.get(name, 0) + step
    return counts


def concatenation(state: State, messages: Sequence[Message]) -> State:
    """All messages, one behind the other: the bytes of a stream, or an array of a JSON stream's values."""
    if not messages:
        return state
    if state is None:
        state = bytearray() if isinstance(messages[0], bytes) else []
    elif isinstance(state, bytes):
        state = bytearray(state)
    if isinstance(state, bytearray):
        for message in messages:
            state += message
        return state
    state.extend(messages)
    return state


BUILT_IN: Mapping[str, FoldFunction] = {
    "last-value": last_value,
    "merge-patch": merge_patch,
    "counters": counters,
    "concatenation": concatenation,
}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2. Changes `target` where it is an object."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


def _member(message: Message, name: str) -> Any:
    if not isinstance(message, dict) or name not in message:
        raise FoldError(f"a message has no member {name!r}: {shortened(message)}")
    return message[name]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FoldError(f"{name!r} is no number: {shortened(value)}")
    return value


def shortened(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


# --- a fold with its name, and states as snapshots


@dataclass(frozen=True, slots=True)
class Fold:
    """A function and the name under which its snapshots are known.

    The name stands in the content type of every snapshot, `application/json; fold="counters key=type"`, so that no
    fold goes on from another one's state.
    """

    name: str
    function: FoldFunction = field(repr=False)

    def state_of(self, snapshot: bytes, content_type: str) -> State:
        """The state that a snapshot holds. One that names no fold is taken as it is."""
        maker = fold_in(content_type)
        if maker is not None and maker != self.name:
            raise FoldError(
                f"its snapshot was made by the fold {maker!r}, not by {self.name!r}; "
                "use that one, or fold into another bucket"
            )
        return msgspec.json.decode(snapshot) if is_json(content_type) else snapshot

    def snapshot_of(self, state: State, stream_content_type: str) -> tuple[bytes, str]:
        """The bytes and the content type to publish. Bytes stay what they are; everything else becomes JSON."""
        if isinstance(state, bytes | bytearray):
            kind = DEFAULT_CONTENT_TYPE if is_json(stream_content_type) else stream_content_type
            return bytes(state), self._named(kind)
        try:
            return msgspec.json.encode(state), self._named(JSON)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise FoldError(f"the fold returned a state that is neither bytes nor JSON: {error}") from None

    def _named(self, content_type: str) -> str:
        return f'{content_type.partition(";")[0].strip()}; fold="{self.name}"'


def fold_in(content_type: str) -> str | None:
    """The fold that a snapshot's content type names."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "fold":
            return value.strip().strip('"')
    return None


# --- finding one


def find_fold(name: str, arguments: Mapping[str, str] | None = None) -> Fold:
    """A built-in fold, or `module:function`; `arguments` are handed to it as keywords."""
    arguments = dict(arguments or {})
    function = BUILT_IN[name] if name in BUILT_IN else _imported(name)
    _check_arguments(name, function, arguments)
    full_name = " ".join((name, *(f"{key}={value}" for key, value in sorted(arguments.items()))))
    if not full_name.isascii() or not full_name.isprintable() or set('";\\') & set(full_name):
        raise FoldError(f"the fold's name {full_name!r} must be plain ASCII without \", ; and \\")
    return Fold(full_name, partial(function, **arguments) if arguments else function)


def _imported(name: str) -> FoldFunction:
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        built_in = ", ".join(BUILT_IN)
        raise FoldError(f"there is no fold {name!r}; built in are {built_in}, or name your own as module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise FoldError(f"the fold {name!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise FoldError(f"the module {module_name} has no function {function_name!r}")
    found: FoldFunction = function
    return found


def _check_arguments(name: str, function: FoldFunction, arguments: Mapping[str, str]) -> None:
    try:
        inspect.signature(function).bind(None, (), **arguments)
    except TypeError as error:
        raise FoldError(
            f"the fold {name!r} cannot be called as (state, messages) with these arguments: {error}"
        ) from None
