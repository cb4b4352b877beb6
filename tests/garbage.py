"""What strangers may send: Hypothesis strategies, and how many examples a fuzz test takes.

``HOLDFAST_FUZZ_EXAMPLES`` says how many (``make soak-fuzz``: 10,000); few where nothing is said.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.waiting import BOUND_S

EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "30"))
"""Longest time that a living process may take to answer on a busy machine."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
"""Settings of a fuzz test."""

# ---------------------------------------------------------------- values
texts = st.sampled_from(
    ["", "\ud800", "\udcff\udc80", "\x00", "x" * 5000, "é" * 2000, "\U0001f4a5" * 300, "-1", "NaN"]
) | st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
numbers = (
    st.sampled_from(
        [0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**400), 10**4000]
    )
    | st.sampled_from([1e308, -0.0, float("nan"), float("inf"), float("-inf")])
    | st.integers()
    | st.floats()
)
_deep = st.integers(1, 1000).map(lambda depth: f"<nested {depth}>")
"""Becomes lists in lists; Python itself could not write them all."""
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | _deep,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)
"""Whatever JSON, as Python reads it, can hold."""

Shape = Mapping[str, st.SearchStrategy[Any]]
"""Fields of an expected message."""


_HARMFUL: list[Any] = [
    *(10**400, -(10**400), 2**63, -1, 1.5, float("nan"), float("inf"), True, None, [], {}, [[]]),
    *("", "\ud800", "x" * 5000, "<nested 500>", "<nested 960>", "<nested 990>", "<nested 5000>"),
]
_nasty = st.sampled_from(_HARMFUL)


def _near(shape: Shape) -> st.SearchStrategy[dict[str, Any]]:
    whole = st.fixed_dictionaries(dict(shape))
    wrong = st.tuples(whole, st.sampled_from(sorted(shape)), _nasty | values).map(
        lambda drawn: {**drawn[0], drawn[1]: drawn[2]}
    )
    some = st.fixed_dictionaries({}, optional={key: is_ | values for key, is_ in shape.items()})
    return _one_of(wrong, wrong, wrong, whole, some)


def _one_of(*strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Each as often as it is named here; ``st.one_of`` counts what they are made of."""
    return st.sampled_from(strategies).flatmap(lambda one: one)


def bodies(*shapes: Shape) -> st.SearchStrategy[dict[str, Any]]:
    """Objects near those that are expected: fields are missing, right, or anything at all."""
    return st.sampled_from(shapes).flatmap(_near)


def encoded(body: Mapping[str, Any]) -> bytes:
    """As a frame."""
    text = json.dumps(body)
    for marker, depth in set(re.findall(r'("<nested (\d+)>")', text)):
        text = text.replace(marker, "[" * int(depth) + "]" * int(depth))
    return framed(text.encode())


# ---------------------------------------------------------------- bytes
def framed(body: bytes) -> bytes:
    """``body`` behind its length."""
    return len(body).to_bytes(4, "big") + body


_BAD_JSON = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"op":"set"',
    b"[" * 3000,
    b'{"a":' * 600 + b"1" + b"}" * 600,
    b'{"op":' + b"[" * 900 + b"]" * 900 + b"}",
    b"[" * 100_000 + b"]" * 100_000,
    b'{"op":"a","op":"b","id":1,"id":2}',
    b'{"id":NaN,"room":Infinity}',
    b'{"id":1e999,"room":-1e999}',
    b'{"id":' + b"9" * 5000 + b"}",
    b'{"token":"\\ud800","role":"store","node":"x"}',
    b'{"token":"\xff\xfe"}',
    b"\xff\xfe{\x00}\x00",
    b"\x00" * 64,
]
bad_frames = st.sampled_from([framed(body) for body in _BAD_JSON]) | st.sampled_from(
    [
        b"\xff\xff\xff\xff",
        (1 << 20).to_bytes(4, "big") + b"x",
        (5000).to_bytes(4, "big"),
        (0).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00",
    ]
)


def streams(*shapes: Shape) -> st.SearchStrategy[bytes]:
    """Some frames in a row, near expected ones or none at all; the last may be cut off."""
    near = bodies(*shapes).map(encoded)
    some = st.dictionaries(texts, values, max_size=3).map(encoded)
    noise = st.binary(max_size=40)
    frames = _one_of(*[near] * 6, some, bad_frames, noise, noise.map(framed))
    whole = st.lists(frames, min_size=1, max_size=4).map(b"".join)
    return whole | st.tuples(whole, st.integers(1, 30)).map(lambda cut: cut[0][: -cut[1]])


# ---------------------------------------------------------------- strangers
def send_and_hear_out(connected: socket.socket, data: bytes) -> bytes:
    """Send, say no more, and read until the other end hangs up; what it answered.

    Raises:
        TimeoutError: It did not hang up: it is stuck.
    """
    connected.settimeout(BOUND_S)
    heard = bytearray()
    try:
        connected.sendall(data)
        connected.shutdown(socket.SHUT_WR)
        while more := connected.recv(1 << 16):
            heard += more
    except TimeoutError:
        raise
    except OSError:  # it closed the connection before it had read everything
        pass
    return bytes(heard)


def ask(connected: socket.socket, body: Mapping[str, Any], is_answer: Callable[[Any], bool]) -> Any:
    """What a living process answers; other frames that come before are dropped."""
    connected.settimeout(BOUND_S)
    connected.sendall(framed(json.dumps(body).encode()))
    while True:
        answer = json.loads(_exactly(connected, int.from_bytes(_exactly(connected, 4), "big")))
        if is_answer(answer):
            return answer


def _exactly(connected: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connected.recv(size - len(data))
        if not more:
            raise ConnectionError("closed the connection")
        data += more
    return data
