"""What the launchers of a job say to each other: messages up to the leader, decisions down from it.

Pure: plain values and their JSON form. The launchers of a job share a store and nothing else:

    launchers --- messages, in the order of their arrival ---> leader
    launchers <-- decisions 1, 2, 3 ..., one writer ---------- leader

A message may arrive late, twice, out of order, or never if its sender dies; nothing in it depends
on its neighbours. Decisions are read by every launcher, all of them, in order: whatever two
launchers know of a cycle, they know the same.

Words. *Node*: one incarnation of a launcher, ``<host>-<pid>-<random>``; a launcher that comes back
is another node. *Cycle*: one life of all ranks of the job, counted 0, 1, 2 ... and never twice.
*Active*: has ranks in this cycle. *Spare*: waits its turn, without ranks.
"""

# ruff: noqa: SLF001 - the kinds of messages are one family in one module
from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

MAX_TEXT = 8192
"""Longest text accepted in a message, in characters: a store is no place for logs."""
_CUT = " ..."
_MOST = 2**63 - 1
"""Largest number accepted: restarts without a limit are as many."""
_EXIT_CODE_MOST = 255


class MessageError(ValueError):
    """A body that is no message of ours: names the kind, the key and the value."""


class NodeState(enum.Enum):
    """How the ranks of a node are doing in the cycle; the last two are final for the cycle."""

    HEALTHY = "HEALTHY"
    LEAVING = "LEAVING"
    """Its launcher was told to end; its ranks have the signal and may be saving their work."""
    UNHEALTHY = "UNHEALTHY"
    """Some ranks failed; others still run."""
    FAILED = "FAILED"
    """No rank runs any more, and not all ended well."""
    SUCCEEDED = "SUCCEEDED"
    """All ranks exited with 0 and nothing of them is left."""


class LeaveWhy(enum.Enum):
    """Why a node will not be heard of any more."""

    EXCLUDED = "excluded"
    """One of its ranks asked for it."""
    UNHEALTHY = "unhealthy"
    """Its health checks failed."""
    SIGNALLED = "signalled"
    """Its launcher was told to end."""
    FINISHED = "finished"
    """The job is over; this is its acknowledgement."""
    STUCK = "stuck"
    """One of its ranks cannot be killed."""
    FENCED = "fenced"
    """It lost the leader, or was refused, and ended its ranks by itself."""


class Outcome(enum.Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SHUT_DOWN = "shut down"


_E = TypeVar("_E", bound=enum.Enum)


def for_people(text: str) -> str:
    """``text`` as a message may carry it: with another one, the whole message would be refused.

    A text may name a file or section whose bytes are not UTF-8 (lone surrogates: they are escaped),
    and may be put together from those of many nodes (the end of a long one is left out).
    """
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - len(_CUT)]}{_CUT}"


def shown(value: object) -> str:
    """The beginning of a value that may be anything, for a line of the log."""
    try:
        return ascii(value)[:200]
    except (ValueError, RecursionError):  # thousands of digits, or of lists within lists
        return f"a {type(value).__name__} that cannot be shown"


class _Body:
    """Reads the values of one JSON body, each checked."""

    def __init__(self, kind: str, body: Mapping[str, object]) -> None:
        self._kind = kind
        self._body = body

    def wrong(self, key: str, expected: str) -> MessageError:
        value = shown(self._body.get(key, "nothing"))
        return MessageError(f"{self._kind}: {key!r} should be {expected}, is {value}")

    def text(self, key: str, *, empty: bool = True) -> str:
        value = self._body.get(key)
        if not isinstance(value, str) or len(value) > MAX_TEXT or not (value or empty):
            raise self.wrong(key, f"text of {0 if empty else 1} to {MAX_TEXT} characters")
        try:
            value.encode()  # logs, files and terminals will want to
        except UnicodeEncodeError:
            raise self.wrong(key, "text that can be written as UTF-8") from None
        return value

    def name(self, key: str) -> str:
        return self.text(key, empty=False)

    def text_or_none(self, key: str) -> str | None:
        return None if self._body.get(key) is None else self.text(key)

    def count(self, key: str, least: int = 0, most: int = _MOST) -> int:
        value = self._body.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"a whole number, {least} or more")
        if value > most:
            raise self.wrong(key, f"a whole number, {most} or less")
        return value

    def count_or_none(self, key: str, most: int = _MOST) -> int | None:
        return None if self._body.get(key) is None else self.count(key, most=most)

    def flag(self, key: str) -> bool:
        value = self._body.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def items(self, key: str) -> list[object]:
        value = self._body.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def inner(self, key: str) -> _Body:
        value = self._body.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return _Body(f"{self._kind}.{key}", value)

    def one_of(self, key: str, kind: type[_E]) -> _E:
        try:
            return kind(self._body.get(key))
        except (ValueError, TypeError):  # the second: a list has no hash
            words = ", ".join(member.value for member in kind)
            raise self.wrong(key, f"one of {words}") from None


# ---------------------------------------------------------------- messages up
@dataclass(frozen=True)
class Descriptor:
    """What others need to know of a launcher.

    Attributes:
        addr: Where ranks of other nodes reach it.
        nproc: Ranks it would start.
        infra_rank: Its number from outside (SLURM_PROCID, GROUP_RANK); None: it has none.
        infra_is_place: The number is meant as group rank; False: it only orders nodes.
        domain: Nodes of one domain (NVLink, rack) belong together; None: it does not matter.
        port: Free on that host for the next cycle's MASTER_PORT; 0: not said.
    """

    addr: str
    hostname: str
    nproc: int
    pid: int
    infra_rank: int | None = None
    infra_is_place: bool = True
    domain: str | None = None
    port: int = 0

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "addr": self.addr,
            "hostname": self.hostname,
            "nproc": self.nproc,
            "pid": self.pid,
            "infra_rank": self.infra_rank,
            "infra_is_place": self.infra_is_place,
            "domain": self.domain,
            "port": self.port,
        }

    @classmethod
    def _read(cls, body: _Body) -> Descriptor:
        return cls(
            addr=body.text("addr"),
            hostname=body.text("hostname"),
            nproc=body.count("nproc", least=1),
            pid=body.count("pid"),
            infra_rank=body.count_or_none("infra_rank"),
            infra_is_place=body.flag("infra_is_place"),
            domain=body.text_or_none("domain"),
            port=body.count("port"),
        )


@dataclass(frozen=True)
class Join:
    """My ranks, if I had any, are gone, and I am ready for the next cycle.

    ``have_cycle``: the last one I took part in, -1 for none: tells a late copy from news.
    """

    node: str
    desc: Descriptor
    have_cycle: int = -1

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "op": "join",
            "node": self.node,
            "desc": self.desc.to_wire(),
            "have_cycle": self.have_cycle,
        }

    @classmethod
    def _read(cls, body: _Body) -> Join:
        return cls(
            body.name("node"), Descriptor._read(body.inner("desc")), body.count("have_cycle", -1)
        )


@dataclass(frozen=True)
class State:
    """The ranks of my node are doing worse than before in this cycle, or have all succeeded.

    ``cause``: the first failure, for people. ``may_restart`` False: a rank asked for no restart.
    """

    node: str
    cycle: int
    state: NodeState
    cause: str = ""
    may_restart: bool = True

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "op": "state",
            "node": self.node,
            "cycle": self.cycle,
            "state": self.state.value,
            "cause": for_people(self.cause),
            "may_restart": self.may_restart,
        }

    @classmethod
    def _read(cls, body: _Body) -> State:
        return cls(
            body.name("node"),
            body.count("cycle"),
            body.one_of("state", NodeState),
            body.text("cause"),
            body.flag("may_restart"),
        )


@dataclass(frozen=True)
class Leave:
    """My ranks are gone (or stuck), and this node will not be heard of any more."""

    node: str
    why: LeaveWhy
    text: str = ""

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        text = for_people(self.text)
        return {"op": "leave", "node": self.node, "why": self.why.value, "text": text}

    @classmethod
    def _read(cls, body: _Body) -> Leave:
        return cls(body.name("node"), body.one_of("why", LeaveWhy), body.text("text"))


@dataclass(frozen=True)
class Control:
    """A rank of mine wants this from the whole job; sent when its node has left the cycle.

    ``rank`` -1: the launcher itself wants it.
    """

    node: str
    action: str
    rank: int
    text: str = ""

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "op": "control",
            "node": self.node,
            "action": self.action,
            "rank": self.rank,
            "text": for_people(self.text),
        }

    @classmethod
    def _read(cls, body: _Body) -> Control:
        return cls(
            body.name("node"), body.name("action"), body.count("rank", -1), body.text("text")
        )


@dataclass(frozen=True)
class Beat:
    """I am alive. Sent only when nothing else was for a while."""

    node: str

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {"op": "beat", "node": self.node}

    @classmethod
    def _read(cls, body: _Body) -> Beat:
        return cls(body.name("node"))


Message = Join | State | Leave | Control | Beat


# ---------------------------------------------------------------- decisions down
@dataclass(frozen=True)
class Place:
    """Where one node stands in a cycle: its ranks are ``rank_offset`` ... ``+ nproc - 1``."""

    node: str
    group_rank: int
    nproc: int
    rank_offset: int
    addr: str


@dataclass(frozen=True)
class Round:
    """A cycle is formed: its nodes start their ranks now, its spares wait.

    Nodes in neither list joined too late and stay in the queue. ``places`` are in the order of
    their group ranks; group rank 0 is the master. ``restarts_used``: of the budget, so far.
    """

    cycle: int
    places: tuple[Place, ...]
    spares: tuple[str, ...] = ()
    world_size: int = 0
    master_addr: str = ""
    master_port: int = 0
    restarts_used: int = 0

    @cached_property
    def _by_node(self) -> dict[str, Place]:
        return {place.node: place for place in self.places}

    def place_of(self, node: str) -> Place | None:
        """Where ``node`` stands in this cycle; None: it has no ranks in it."""
        return self._by_node.get(node)

    def to_wire(self) -> dict[str, object]:
        """As JSON; places as short lists, because with 10,000 nodes everyone reads all of them."""
        return {
            "op": "round",
            "cycle": self.cycle,
            "places": [[p.node, p.group_rank, p.nproc, p.rank_offset, p.addr] for p in self.places],
            "spares": list(self.spares),
            "world_size": self.world_size,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "restarts_used": self.restarts_used,
        }

    @classmethod
    def _read(cls, body: _Body) -> Round:
        places = []
        for item in body.items("places"):
            match item:
                case [str(node), int(group_rank), int(nproc), int(rank_offset), str(addr)]:
                    numbers = (group_rank, nproc, rank_offset)
                    if not all(0 <= number <= _MOST for number in numbers):
                        raise body.wrong("places", "ranks and counts of 0 or more")
                    places.append(Place(node, group_rank, nproc, rank_offset, addr))
                case _:
                    raise body.wrong("places", "a list of [node, group rank, nproc, offset, addr]")
        spares = []
        for item in body.items("spares"):
            if not isinstance(item, str):
                raise body.wrong("spares", "a list of nodes")
            spares.append(item)
        return cls(
            body.count("cycle"),
            tuple(places),
            tuple(spares),
            body.count("world_size", 1),
            body.text("master_addr"),
            body.count("master_port"),
            body.count("restarts_used"),
        )


@dataclass(frozen=True)
class Stop:
    """Leave this cycle: stop your ranks, then join again. ``node``: where the cause is, if one."""

    cycle: int
    cause: str
    node: str | None = None
    restarts_left: int = 0

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "op": "stop",
            "cycle": self.cycle,
            "cause": for_people(self.cause),
            "node": self.node,
            "restarts_left": self.restarts_left,
        }

    @classmethod
    def _read(cls, body: _Body) -> Stop:
        return cls(
            body.count("cycle"),
            body.text("cause"),
            body.text_or_none("node"),
            body.count("restarts_left"),
        )


@dataclass(frozen=True)
class End:
    """The job is over for all: stop what still runs, acknowledge, leave.

    ``exit_code`` None: every launcher says 1 if its own ranks failed, else 0.
    """

    outcome: Outcome
    exit_code: int | None
    cause: str

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "op": "end",
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "cause": for_people(self.cause),
        }

    @classmethod
    def _read(cls, body: _Body) -> End:
        return cls(
            body.one_of("outcome", Outcome),
            body.count_or_none("exit_code", _EXIT_CODE_MOST),
            body.text("cause"),
        )


@dataclass(frozen=True)
class Refused:
    """This one node can't take part; nobody else is concerned."""

    node: str
    why: str

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {"op": "refused", "node": self.node, "why": for_people(self.why)}

    @classmethod
    def _read(cls, body: _Body) -> Refused:
        return cls(body.name("node"), body.text("why"))


@dataclass(frozen=True)
class LeaderBeat:
    """The leader is alive. Published only when nothing else was for a while.

    ``waits``: who is here, and for what they wait, for people who have to; empty: nothing to say.
    """

    waits: str = ""

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {"op": "beat", "waits": for_people(self.waits)} if self.waits else {"op": "beat"}

    @classmethod
    def _read(cls, body: _Body) -> LeaderBeat:
        return cls(body.text_or_none("waits") or "")


Decision = Round | Stop | End | Refused | LeaderBeat

_MESSAGES: Mapping[str, type[Message]] = {
    "join": Join,
    "state": State,
    "leave": Leave,
    "control": Control,
    "beat": Beat,
}
_DECISIONS: Mapping[str, type[Decision]] = {
    "round": Round,
    "stop": Stop,
    "end": End,
    "refused": Refused,
    "beat": LeaderBeat,
}


def message_from_wire(body: object) -> Message:
    """The message of a JSON body; unknown keys are ignored, so that versions can differ.

    Raises:
        MessageError: It is none.
    """
    fields, op = _open(body)
    kind = _MESSAGES.get(op)
    if kind is None:
        raise MessageError(f"unknown message {shown(op)}")
    return kind._read(fields)


def decision_from_wire(body: object) -> Decision:
    """The decision of a JSON body; unknown keys are ignored, so that versions can differ.

    Raises:
        MessageError: It is none.
    """
    fields, op = _open(body)
    kind = _DECISIONS.get(op)
    if kind is None:
        raise MessageError(f"unknown decision {shown(op)}")
    return kind._read(fields)


def _open(body: object) -> tuple[_Body, str]:
    if not isinstance(body, dict):
        raise MessageError(f"a message is a JSON object, not {shown(body)}")
    op = body.get("op")
    if not isinstance(op, str):
        raise MessageError(f"'op' should be text, is {shown(op)}")
    return _Body(op, body), op


# ---------------------------------------------------------------- time
@dataclass(frozen=True)
class Pace:
    """How long silence may last, in seconds. All launchers of a job use the same.

    A node that is cut off must have ended its ranks before the others go on without it. Both clocks
    start at the last beat that came through, so the node gives up first: ``fence_s`` plus the time
    SIGKILL takes stays below ``silence_s`` less one ``beat_s`` and the delay of a message.

    Attributes:
        silence_s: A node not heard of for this long is gone. Longer than any pause of a healthy
            launcher; the price of a machine that loses power is this long.
        beat_s: Say something at least this often; several beats fit in a silence.
        fence_s: A launcher that hears nothing of the leader for this long ends its ranks.
        join_timeout_s: How long a cycle may take to form before the job is given up.
    """

    silence_s: float = 15.0
    beat_s: float = 3.0
    fence_s: float = 10.0
    join_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if not 0 < self.beat_s < self.fence_s <= self.silence_s - self.beat_s:
            raise ValueError(
                f"beat_s ({self.beat_s:g}) < fence_s ({self.fence_s:g}) <= silence_s - beat_s "
                f"({self.silence_s - self.beat_s:g}) must hold: a node that is cut off ends its "
                "ranks before the others go on without it"
            )
        if self.join_timeout_s <= 0:
            raise ValueError(f"join_timeout_s must be positive, is {self.join_timeout_s:g}")

    @classmethod
    def of(cls, silence_s: float, join_timeout_s: float = 900.0) -> Pace:
        """The pace for a silence limit: five beats in it, fenced after two thirds of it."""
        return cls(silence_s, silence_s / 5, silence_s * 2 / 3, join_timeout_s)
