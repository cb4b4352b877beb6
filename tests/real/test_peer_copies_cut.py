"""Copies of snapshots between two hosts, as far as the network goes, whose link is cut."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.arena.pure import layout
from holdfast.arena.pure.peer_messages import CopyPushed, CopyRefused, PushCopy
from tests.copy_nodes import MIB, CopyNode, steps, taken
from tests.real.hosts import ip, network
from tests.waiting import until

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
IS_IMPATIENT = """
import holdfast.arena.slot_stream as it
it.SILENT_S = 2.0
"""
IS_SLOW = f"""{IS_IMPATIENT}
import time
it.CHUNK_BYTES = 4096
real = it.zlib.crc32
it.zlib = type(it)("zlib")
it.zlib.crc32 = lambda *given: time.sleep(0.005) or real(*given)
"""
"""It takes 0.8 MB/s."""


def within(host: str, act: Callable[[], T]) -> T:
    """Have this thread act in the network namespace of a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own, Path("/run/netns", host).open() as its:
        assert libc.setns(its.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            return act()
        finally:
            assert libc.setns(own.fileno(), _CLONE_NEWNET) == 0


def test_a_link_that_is_cut_ends_the_copy_on_both_sides_and_the_kept_step_stays(
    tmp_path: Path,
) -> None:
    with network(tmp_path) as several:
        for _ in range(2):
            several.add()
        one, other = several.hosts
        with (
            within(one, lambda: CopyNode(before=IS_IMPATIENT)) as sender,
            within(other, lambda: CopyNode(before=IS_SLOW)) as receiver,
        ):
            own, replica = sender.arena(), receiver.hold(0)

            def push(slot: int, step: int, n_bytes: int) -> None:
                held = taken(own, slot, step, n_bytes)
                order = PushCopy(step, held, step - 1, several.v4(1), receiver.port)
                sender.tell(order, own.fd)

            push(0, 4, 1000)
            assert sender.outcome() == CopyPushed(4)
            push(1, 5, 32 * MIB)
            begun = layout.slot(1) + layout.CAPACITY
            until(lambda: replica.words[begun], "the second copy has begun")
            ip("link", "set", other, "down")
            assert " 2 s" in sender.outcome().why
            while not isinstance(found := receiver.outcome(), CopyRefused):
                pass
            assert " 2 s" in found.why
            assert steps(replica) == {4: True}
            ip("link", "set", other, "up")
            own.void(1)
            push(2, 5, 1000)
            assert sender.outcome() == CopyPushed(5)
            assert steps(replica) == {4: True, 5: True}
