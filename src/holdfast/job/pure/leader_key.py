"""The key of a rendezvous backend that names the launcher that leads a job. Pure.

Its value changes by `compare_set` alone:

    absent ──► leader ──► the next leader ──► ... ──► over
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from holdfast.base.pure.value import Value
from holdfast.job.pure.membership import Successor
from holdfast.job.pure.succession_messages import (
    KeyHeld,
    KeyTaken,
)
from holdfast.net.pure.address import parse_endpoint

_OVER = "over: "
"""Begins the value when the job has ended."""


class LeaderKey(Value):
    """A value of the key: where the leader serves, the term it leads in, and its node."""

    addr: str
    port: int
    term: int = 0
    node: str = ""

    def __str__(self) -> str:
        """As it is stored."""
        host = f"[{self.addr}]" if ":" in self.addr else self.addr
        return f"{host}:{self.port} {self.term} {self.node}"


def parse_key(text: str) -> LeaderKey:
    """The value of a key that :func:`is_over` is not true of.

    Raises:
        ValueError: It is of no such form.
    """
    where, _, rest = text.partition(" ")
    term, _, node = rest.partition(" ")
    at = parse_endpoint(where)
    if at.port is None:
        raise ValueError(f"the key of the leader is {text[:100]!a}, which has no port")
    return LeaderKey(at.host, at.port, int(term or 0), node)


def over(cause: str) -> str:
    """The value of the key of a job that has ended."""
    return f"{_OVER}{cause}"


def how_over(text: str) -> str | None:
    """How the job has ended; None: it has not."""
    return text[len(_OVER) :] if text.startswith(_OVER) else None


class KeyOver(Value):
    """The job has ended, as the key says."""

    how: str


Claimed = KeyTaken | KeyHeld | KeyOver


def claim(own: LeaderKey, dead: Collection[str]) -> Generator[tuple[str, LeaderKey], str, Claimed]:
    """Steps of :class:`.ClaimKey`.

    Yields the value to expect and the value to set in its place; is sent the value of the key after
    that. A step may be repeated, and carried out late: a value names one launcher in one term, and
    no launcher sets an old one again.
    """
    expected = before = ""
    while True:
        found = yield expected, own
        if found == str(own):
            return KeyTaken(before, own.term)
        how = how_over(found)
        if how is not None:
            return KeyOver(how)
        holder = parse_key(found)
        if holder.node == own.node:  # by an earlier attempt, of which no answer came
            return KeyTaken("", holder.term)
        if holder.node not in dead or found == expected:
            node = holder.node or f"{holder.addr}:{holder.port}"
            return KeyHeld(Successor(node, holder.addr, holder.port))
        expected, before = found, holder.node
        own = own.but(term=max(own.term, holder.term + 1))
