"""The head of a snapshot: what safetensors demands, and what a forged one is refused for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.tensors_head import (
    ALIGNMENT,
    ELEMENT_BYTES,
    Head,
    HeadError,
    Parsed,
    Tensor,
    parse,
)

names = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
tensors = st.lists(
    st.builds(
        Tensor,
        names,
        st.sampled_from(sorted(ELEMENT_BYTES)),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)
metadata = st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=4)


def as_file(head: Head, found: dict[str, str]) -> bytes:
    first = head.render(json.dumps(found))
    assert first is not None
    return first + bytes(head.n_bytes - head.data_at)


@given(tensors, metadata)
def test_a_head_is_read_as_it_was_written(rows: list[Tensor], found: dict[str, str]) -> None:
    head = Head(rows, len(json.dumps(found)))
    parsed = parse(memoryview(as_file(head, found)))
    assert parsed == Parsed(head.placed, found, head.data_at)
    assert {name: (p.dtype, p.shape) for name, p in parsed.placed.items()} == {
        each.name: (each.dtype, each.shape) for each in rows
    }


@given(tensors)
def test_tensors_lie_without_gap_each_at_a_multiple_of_its_elements(rows: list[Tensor]) -> None:
    """The safetensors library accepts no gap, and a view needs the alignment."""
    head = Head(rows, 100)
    assert head.data_at % ALIGNMENT == 0
    end = 0
    for each in sorted(head.placed.values(), key=lambda p: (p.begin, p.end)):
        assert each.begin == end
        assert (head.data_at + each.begin) % ELEMENT_BYTES[each.dtype] == 0
        end = each.end
    assert head.n_bytes == head.data_at + end


def test_metadata_that_grow_beyond_their_room_are_not_written() -> None:
    head = Head([Tensor("a", "F32", (2,))], 20)
    assert head.render('{"step":"1"}') is not None
    assert head.render(json.dumps({"step": "1" * 200})) is None


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(HeadError, match="2 tensors have 1 names"):
        Head([Tensor("a", "F32", (2,)), Tensor("a", "F32", (3,))], 20)


def file_with(table: Any, data: bytes = b"") -> memoryview:
    body = table if isinstance(table, bytes) else json.dumps(table).encode()
    return memoryview(len(body).to_bytes(8, "little") + body + data)


def row(begin: Any, end: Any, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (memoryview(b"1234567"), "no head"),
        (memoryview((1 << 63).to_bytes(8, "little")), "a head of"),
        (file_with(b"{"), "not JSON"),
        (file_with(b"[" * 100_000), "not JSON"),
        (file_with([]), "JSON list"),
        (file_with({"__metadata__": {"a": 1}}), "metadata"),
        (file_with({"a": row(0, 8)}), "fill 8 bytes of 0"),
        (file_with({"a": row(0, 8)}, bytes(9)), "fill 8 bytes of 9"),
        (file_with({"a": row(0, 8), "b": row(4, 12)}, bytes(12)), "begins at 4"),
        (file_with({"a": row(0, 8), "b": row(12, 20)}, bytes(20)), "begins at 12"),
        (file_with({"a": row(0, 9)}, bytes(9)), "of 8 bytes has a place of 9"),
        (file_with({"a": row(8, 0)}, bytes(8)), "has a place of -8"),
        (file_with({"a": row(0, 8, (1 << 61, 1 << 61))}, bytes(8)), "has a place of 8"),
        (file_with({"a": row(0, 8, (-2,))}, bytes(8)), "valid type, shape"),
        (file_with({"a": row(0, 8, (True, 2))}, bytes(8)), "valid type, shape"),
        (file_with({"a": row(0, 8, (2.0,))}, bytes(8)), "valid type, shape"),
        (file_with({"a": row(0, 8, dtype="F33")}, bytes(8)), "valid type, shape"),
        (file_with({"a": 7}), "valid type, shape"),
    ],
)
def test_a_hostile_head_is_refused_before_a_size_is_used(found: memoryview, why: str) -> None:
    with pytest.raises(HeadError, match=why):
        parse(found)


@given(tensors, st.data())
def test_no_change_of_bytes_gives_a_range_outside_the_file(rows: list[Tensor], data: Any) -> None:
    """Whatever is changed: refused, or every place is within the file."""
    head = Head(rows, 40)
    forged = bytearray(as_file(head, {"step": "3"}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(forged), head.data_at) - 1))
        forged[at] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(memoryview(forged))
    except HeadError:
        return
    for each in parsed.placed.values():
        assert 0 <= each.begin <= each.end <= len(forged) - parsed.data_at


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(noise: bytes) -> None:
    try:
        parse(memoryview(noise))
    except HeadError:
        return
