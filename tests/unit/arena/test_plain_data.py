"""Plain data comes back with its types; the rest is named."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.plain_data import NotPlainError, decode, encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashable = st.recursive(
    scalars, lambda x: st.tuples(x, x) | st.frozensets(x, max_size=3), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda x: (
        st.lists(x, max_size=3)
        | st.tuples(x, x)
        | st.dictionaries(hashable, x, max_size=3)
        | st.dictionaries(st.text(), x, max_size=3).map(OrderedDict)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(st.text(), st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def never(_path: str, _value: object) -> None:
    return None


def again(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "x", never))), lambda name: name)


@given(values)
def test_plain_data_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    found = again(value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value) or isinstance(value, (set, frozenset, dict, list, tuple))


def test_numbers_that_json_does_not_know_come_back() -> None:
    assert again(math.inf) == math.inf
    assert again({"worst": -math.inf})["worst"] == -math.inf
    assert math.isnan(again(math.nan))


@pytest.mark.parametrize("value", [defaultdict(list, {"a": [1]}), defaultdict(int, {(1, 2): 3})])
def test_a_defaultdict_still_makes_what_is_missing(value: defaultdict[Any, Any]) -> None:
    found = again(value)
    assert found == value
    assert found["missing"] == value["missing"]


@pytest.mark.parametrize("factory", [None, lambda: 5])
def test_a_defaultdict_of_another_function_comes_back_as_a_dict(factory: Any) -> None:
    found = again(defaultdict(factory, {"a": [1]}))
    assert (type(found), found) == (dict, {"a": [1]})


def test_an_array_that_is_no_leaf_is_refused_and_a_number_of_numpy_is_its_value() -> None:
    numpy = pytest.importorskip("numpy")
    assert again([numpy.int64(3), numpy.float32(0.5), numpy.str_("a")]) == [3, 0.5, "a"]
    for array in (numpy.array(["a"]), numpy.array([1, object()], dtype=object)):
        with pytest.raises(NotPlainError, match=r"^x\.names is a numpy\.ndarray$"):
            encode({"names": array}, "x", never)


def test_a_key_that_looks_like_a_tag_is_only_a_key() -> None:
    value = {"$": "leaf", "of": "anything"}
    assert again(value) == value


def test_the_value_that_is_not_plain_is_named_by_its_path() -> None:
    with pytest.raises(NotPlainError, match=r"loader\.workers\[1\]\.lock is a builtins\.object"):
        encode({"workers": [1, {"lock": object()}]}, "loader", never)


def test_data_that_contain_themselves_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotPlainError, match=r"^x\[0\].*\.\.\. is nested more than 100 deep$"):
        encode(value, "x", never)


def test_other_leaves_are_the_callers() -> None:
    leaf = object()
    found = encode({"a": (leaf,)}, "x", lambda path, value: path if value is leaf else None)
    assert decode(found, lambda name: f"<{name}>") == {"a": ("<x.a[0]>",)}


@pytest.mark.parametrize(
    "found", [{"$": "eval", "of": "1"}, {"$": "complex", "of": [1]}, {"$": "tuple", "of": 3}]
)
def test_a_form_that_no_version_writes_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match="no known form"):
        decode(found, lambda name: name)
