"""Messages that only holders of a job's secret can have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.job.pure.sealed import Sealer, SealError, UnsignedError, parse, unsigned_body

OURS = Sealer("correct horse battery staple", "j1")
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
messages = st.dictionaries(st.text(st.characters(codec=None)), values, max_size=4)
slots = st.builds("{}/{}".format, st.sampled_from(["up", "down"]), st.integers(1, 10**6))
sessions = st.text("0123456789abcdef", max_size=16)


@given(slots, sessions, messages)
def test_what_was_sealed_is_read_by_who_has_the_secret(
    slot: str, session: str, message: dict[str, Any]
) -> None:
    sealed = OURS.seal(slot, session, message)
    assert sealed.isascii()
    assert Sealer("correct horse battery staple", "j1").open(slot, session, sealed) == message
    assert OURS.open(slot, None, sealed) == message
    assert unsigned_body(sealed) == message


END = {"op": "end", "outcome": "failed", "exit_code": 1, "cause": "we say so"}


@pytest.mark.parametrize("secret", [None, "", "wrong", "correct horse battery stapl\udce9"])
def test_another_secret_or_none_makes_nothing_that_counts(secret: str | None) -> None:
    """Both ways: who has none refuses those who have one."""
    theirs = Sealer(secret, "j1")
    with pytest.raises(UnsignedError):
        OURS.open("down/3", "5e55", theirs.seal("down/3", "5e55", END))
    with pytest.raises(UnsignedError):
        theirs.open("down/3", "5e55", OURS.seal("down/3", "5e55", END))


def test_a_message_counts_only_where_and_when_it_was_written() -> None:
    """Copied to another slot, job or direction, or written again in another start of the job."""
    sealed = OURS.seal("down/3", "5e55", END)
    for slot in ("down/4", "up/3", "welcome/3", "down/33"):
        with pytest.raises(UnsignedError):
            OURS.open(slot, "5e55", sealed)
    with pytest.raises(UnsignedError):
        Sealer("correct horse battery staple", "j2").open("down/3", "5e55", sealed)
    with pytest.raises(SealError, match="another start of the job"):
        OURS.open("down/3", "5e56", sealed)
    with pytest.raises(UnsignedError):
        OURS.open("down/3", "5e56", sealed.replace(b" 5e55 ", b" 5e56 "))


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_message_can_be_changed(at: int, by: int) -> None:
    sealed = bytearray(OURS.seal("down/3", "5e55", END))
    sealed[at % len(sealed)] ^= by
    with pytest.raises(SealError):
        OURS.open("down/3", "5e55", bytes(sealed))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_one_kind_of_error(data: bytes) -> None:
    """Whatever they are, also behind our own first word."""
    mac = b"0" * 64
    for stranger in (data, b"holdfast1 " + data, b"holdfast1 5e55 " + mac + b" " + data):
        with pytest.raises(SealError):
            OURS.open("up/1", "5e55", stranger)


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe", b'{"a":1', b""],
)
def test_json_that_cannot_be_read_is_that_error_also_from_one_of_us(body: bytes) -> None:
    """A RecursionError ended the thread that read it, and the job waited for 900 s."""
    with pytest.raises(SealError, match="cannot be read as JSON"):
        parse(body)


def test_a_message_that_is_too_long_is_not_looked_into() -> None:
    with pytest.raises(SealError, match="more than 16777216"):
        OURS.open("up/1", "5e55", b"holdfast1 " + b"x" * (16 << 20))


def test_the_secret_is_in_nothing_that_is_shown_or_sent() -> None:
    assert "horse" not in repr(OURS)
    assert b"horse" not in OURS.seal("up/1", "5e55", END)
    assert json.loads(OURS.seal("up/1", "5e55", END).split(b" ", 3)[3]) == END
