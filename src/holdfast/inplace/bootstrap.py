"""Ranks that share only a store find their guards and their coordinator.

Rank 0 draws the job's secret token, starts the guard of its node with the coordinator in it, and
publishes token and address in the store that the user's ``store_factory`` made. From the first
epoch on that store is not needed any more, so it may die with rank 0.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base.clock import monotonic
from holdfast.base.loopback import own_loopback
from holdfast.base.pure import codec
from holdfast.base.rank_log import rank_logger
from holdfast.inplace.guard_process import connect_to_guard
from holdfast.inplace.pure.messages import TO_FIRST_RANK, Attach, Hosting
from holdfast.inplace.torch_edge.epoch_store import EpochOverError, EpochStore
from holdfast.inprocess.exception import BarrierTimeout, InternalError
from holdfast.net.address import gloo_interface, publish, resolved
from holdfast.net.client import Client
from holdfast.net.pure.address import is_loopback
from holdfast.net.pure.frames import FrameError

log = rank_logger(__name__)

_TOKEN_BYTES = 16
_GUARD_S = 60.0
_RANK_AND_SIZE = ("RANK", "WORLD_SIZE")
_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""In which srun and mpirun say how many processes they have started."""
_calls = 0
"""Calls of wrapped functions in this process: every rank makes the same ones."""


@dataclass(frozen=True)
class Meeting:
    """The address of the coordinator, and the secret that it asks for.

    ``key`` is before the keys of this call, in the store where ranks meet. ``gloo_interface``: on
    which gloo has to listen here to be reached; None: it finds out.
    """

    token: str
    host: str
    port: int
    key: str
    gloo_interface: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port


@contextlib.contextmanager
def only_rank_without_environment() -> Iterator[None]:
    """Plain python, or a notebook: inside, this process is rank 0 of 1.

    Raises:
        ValueError: ``RANK`` and ``WORLD_SIZE`` are not set, and srun or mpirun has started several
            processes. Each of them would train alone.
    """
    if any(name in os.environ for name in _RANK_AND_SIZE):
        yield
        return
    for name in _TASKS:
        number = os.environ.get(name, "")
        if number.isdecimal() and int(number) > 1:
            raise ValueError(
                f"RANK and WORLD_SIZE are not set in a job of {number} processes ({name}): set "
                "them for each process, and MASTER_ADDR and MASTER_PORT, or start the script with "
                "ft_launcher or torchrun"
            )
    log.warning(
        "RANK and WORLD_SIZE are not set: this process calls the function as the only rank of its "
        "job (rank 0 of 1)"
    )
    try:
        yield
    finally:
        for name in _RANK_AND_SIZE:
            os.environ.pop(name, None)


def meet(store: Any, rank: int, attach: Attach, timeout_s: float) -> tuple[Client, Meeting]:
    """Connect to the guard of this node, attached, and find the coordinator.

    Args:
        store: Of torch, shared by all ranks.
        rank: Of this process.
        attach: Settings for the guard, without the place of the coordinator.
        timeout_s: How long to wait for rank 0.

    Raises:
        BarrierTimeout: Rank 0 did not come in time.
        GuardError: The guard cannot be started.
        InternalError: The guard refused.
    """
    global _calls  # noqa: PLW0603 - one count for the process is the point
    _calls += 1
    # Without the restart count: under torchrun only the node that lost a rank counts a restart.
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    key = f"holdfast/inprocess/{run}/{_calls}"
    if rank == 0:
        token = secrets.token_hex(_TOKEN_BYTES)
        client = connect_to_guard(token)
        port = _host(client, Attach(**{**vars(attach), "hosts": True}))
        own = publish(os.environ.get("MASTER_ADDR", "")).address
        # rank 0 finds the coordinator in the guard of its node
        meeting = Meeting(token, own_loopback(), port, key, gloo_interface(own))
        number = store.add(f"{key}/meetings", 1)
        store.set(f"{key}/{number}", json.dumps([token, own, port]))
        return client, meeting
    try:
        meeting = _find_meeting(store, key, monotonic() + timeout_s)
    except RuntimeError as error:
        raise BarrierTimeout(
            f"rank {rank}: rank 0 did not come to the store within {timeout_s:g} s "
            f"(barrier_timeout): {error}"
        ) from error
    own = publish(meeting.host).address
    meeting = replace(meeting, gloo_interface=gloo_interface(own))
    client = connect_to_guard(meeting.token)
    attach = Attach(**{**vars(attach), "host": meeting.host, "port": meeting.port})
    client.send(codec.encode(attach))
    with contextlib.suppress(RuntimeError):  # only for a report of those that are late
        store.set(_came(meeting, rank), "1")
    return client, meeting


def late_ranks(store: Any, meeting: Meeting, world: int) -> list[int]:
    """Those that have not come, as far as rank 0's store says."""
    return [rank for rank in range(1, world) if not store.check([_came(meeting, rank)])]


def _came(meeting: Meeting, rank: int) -> str:
    return f"{meeting.key}/{meeting.token}/{rank}"


@contextlib.contextmanager
def waiting_for_rank_0(rank: int, after_s: float) -> Iterator[None]:
    """Inside, one rank of this node logs after ``after_s`` that it waits for rank 0."""
    text = f"waiting for rank 0, which did not come within {after_s:g} s"
    timer = threading.Timer(after_s, log.warning, [text])
    timer.daemon = True
    if rank == 1 or (rank > 1 and os.environ.get("LOCAL_RANK", "0") == "0"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _find_meeting(store: Any, key: str, until: float) -> Meeting:
    """The newest meeting, or the one that comes.

    A store may be older than these processes: a file is, and the store of torchrun's agent. So a
    meeting that was there before is tried.
    """

    def published(number: int) -> Meeting:
        left_s = max(0.0, until - monotonic())
        store.wait([f"{key}/{number}"], dt.timedelta(seconds=left_s))
        token, host, port = json.loads(store.get(f"{key}/{number}"))
        at = resolved(host, port)  # looked up once, not in each iteration
        if at != host and not is_loopback(at):
            store.set(f"{key}/reached", at)
        return Meeting(token, at, port, key)

    number = store.add(f"{key}/meetings", 0)
    if number == 0:
        return published(1)
    meeting = published(number)
    is_of_these_ranks = bool(getattr(store, "critical_ranks", ()))  # a rank hosts it
    return meeting if is_of_these_ranks or _answers(meeting, until) else published(number + 1)


def reached_at(store: Any, meeting: Meeting) -> str | None:
    """The address at which ranks of other hosts reach rank 0's; None: rank 0 published an address.

    Known when all ranks have come. A host cannot find out by itself where its name leads others.
    """
    reached = f"{meeting.key}/reached"
    return store.get(reached).decode() if store.check([reached]) else None


def _answers(meeting: Meeting, until: float) -> bool:
    """Whether its coordinator is there."""
    asked = EpochStore(meeting.address, meeting.token, 0, until - monotonic())
    try:
        asked.num_keys()
    except EpochOverError:
        return True
    except (OSError, RuntimeError):
        return False
    finally:
        asked.close()
    return True


def _host(client: Client, attach: Attach) -> int:
    """Attach, and wait for the port of the coordinator."""
    try:
        client.send(codec.encode(attach), _GUARD_S)
        answer = client.receive(_GUARD_S)
        message = codec.decode(TO_FIRST_RANK, answer)
    except TimeoutError:
        raise InternalError(f"the node guard did not start within {_GUARD_S:g} s") from None
    except OSError:
        raise InternalError("the node guard ended before it answered") from None
    except (codec.MessageError, FrameError) as error:
        raise InternalError(f"the node guard answered: {error}") from None
    if not isinstance(message, Hosting):
        raise InternalError(f"the node guard refused: {message.text}")
    return message.port
