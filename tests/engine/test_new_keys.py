"""Keys that listings add to the catalog's: in order, and cheap however many there are."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine import new_keys
from millstream.engine.new_keys import NewKeys

NAMES = st.text(alphabet="abc", max_size=4)


class CountedKey(str):
    """A key that counts how often it is compared."""

    compared: ClassVar[int] = 0

    def __lt__(self, other: str) -> bool:
        CountedKey.compared += 1
        return str.__lt__(self, other)


@given(st.lists(st.tuples(st.sampled_from(("x", "y")), NAMES, st.booleans()), max_size=60), NAMES, NAMES)
def test_what_is_between_two_keys_is_there_in_order_whenever_it_is_asked_for(
    added: list[tuple[str, str, bool]], first: str, before: str
) -> None:
    keys = NewKeys()
    so_far: dict[str, list[str]] = {"x": [], "y": []}
    for bucket, name, is_listed in added:
        keys.add(f"{bucket}/{name}")
        so_far[bucket].append(f"{bucket}/{name}")
        if is_listed:
            low, high = f"{bucket}/{first}", f"{bucket}/{before}"
            expected = sorted(key for key in so_far[bucket] if low <= key < high)
            assert list(keys.between(bucket, low, high)) == expected
    assert list(keys.between("never", "", "z")) == []


def test_a_page_after_each_new_key_does_not_walk_through_all_the_others() -> None:
    keys = NewKeys()
    count, pages, page = 50_000, 100, 10
    for number in range(count):
        keys.add(CountedKey(f"b/{number * 7919 % count}"))
    CountedKey.compared = 0
    for number in range(pages):
        keys.add(CountedKey(f"b/{number}-late"))
        assert len(list(islice(keys.between("b", "b/2", "b/9"), page))) == page
    assert CountedKey.compared < pages * 1000


def test_keys_are_sorted_as_they_come_so_that_no_listing_has_to_sort_them_all() -> None:
    keys = NewKeys()
    for number in range(10 * new_keys._UNSORTED_MAX):
        keys.add(CountedKey(f"b/{number * 7919 % 65_537}"))
    CountedKey.compared = 0
    assert next(keys.between("b", "b/", "b0")) == "b/0"
    assert CountedKey.compared < 100
