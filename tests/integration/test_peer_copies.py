"""Copies of snapshots between two real processes: cut anywhere, refused, and killed at each phase.

Invariant: a copy that is committed has the bytes of the snapshot, and the kept one stays.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure import layout
from holdfast.arena.pure import peer_messages as messages
from holdfast.arena.pure.peer_messages import (
    ConfigureCopies,
    CopiesDropped,
    CopyBegins,
    CopyEnds,
    CopyNotPushed,
    CopyPushed,
    CopyReceived,
    CopyRefused,
    CopySecret,
    CopyUnderWay,
    GreetReceiver,
    HoldCopies,
    SenderProof,
)
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.slot_stream import SlotStream
from holdfast.base.processes import child, proc
from holdfast.base.pure.codec import encode
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import encode as frame
from holdfast.node.peer_copies import PeerCopies
from tests.copy_nodes import MIB, CopyNode, content, steps, taken
from tests.waiting import until

SECRET = CopySecret(ConfigureCopies("job", "secret"))


@pytest.fixture
def sender() -> Iterator[CopyNode]:
    with CopyNode() as node:
        yield node


@pytest.fixture
def receiver() -> Iterator[CopyNode]:
    with CopyNode() as node:
        yield node


def refused(node: CopyNode) -> CopyRefused:
    while isinstance(outcome := node.outcome(), CopyUnderWay | messages.Note):
        pass
    assert isinstance(outcome, CopyRefused), outcome
    return outcome


# ---------------------------------------------------------------- copied
@pytest.mark.parametrize("n_bytes", [1, 4096, 5 * MIB + 13])
def test_a_copy_has_the_bytes_of_the_snapshot_and_their_sum(
    sender: CopyNode, receiver: CopyNode, n_bytes: int
) -> None:
    own, replica = sender.arena(), receiver.hold(0)
    held = taken(own, 1, 5, n_bytes)
    sender.push(own, held, receiver)
    assert sender.outcome() == CopyPushed(5)
    assert receiver.outcome() in (CopyReceived(held), CopyUnderWay(0))
    assert steps(replica) == {5: True}
    [copy] = replica.all_held()
    assert copy.held == held
    assert replica.sum_of(copy.slot) == own.sum_of(1)


def test_a_snapshot_that_is_not_added_up_yet_is_copied_without_a_sum(
    sender: CopyNode, receiver: CopyNode
) -> None:
    own, replica = sender.arena(), receiver.hold(0)
    sender.push(own, taken(own, 0, 5, summed=False), receiver)
    assert sender.outcome() == CopyPushed(5)
    assert [replica.sum_of(it.slot) for it in replica.all_held()] == [None]


def test_the_kept_step_stays_while_the_next_one_comes(sender: CopyNode, receiver: CopyNode) -> None:
    """So at each instant one of them is whole."""
    own, replica = sender.arena(), receiver.hold(0)
    for step in range(1, 6):
        sender.push(own, taken(own, step % 3, step), receiver, kept=step - 1)
        assert sender.outcome() == CopyPushed(step)
        assert steps(replica) == {it: True for it in (step - 1, step) if it}


def test_a_snapshot_that_is_held_is_not_sent_again(sender: CopyNode, receiver: CopyNode) -> None:
    """The answer may have been lost; the slot is not written."""
    own, replica = sender.arena(), receiver.hold(0)
    held = taken(own, 1, 5)
    for _ in range(2):
        sender.push(own, held, receiver)
        assert sender.outcome() == CopyPushed(5)
    assert replica.words[layout.slot(1) + layout.CAPACITY] == 0
    own.void(1)
    sender.push(replica, held, receiver)  # a replica is sent on as a rank's own
    assert sender.outcome() == CopyPushed(5)


def test_several_ranks_are_copied_at_once(sender: CopyNode, receiver: CopyNode) -> None:
    own = [sender.arena() for _ in range(6)]
    copies = [receiver.hold(rank) for rank in range(6)]
    for rank, memory in enumerate(own):
        sender.push(memory, taken(memory, 0, rank + 1, 3 * MIB, rank=rank), receiver)
    assert {sender.outcome() for _ in own} == {CopyPushed(rank + 1) for rank in range(6)}
    assert [steps(memory) for memory in copies] == [{rank + 1: True} for rank in range(6)]


# ---------------------------------------------------------------- not copied
def test_a_snapshot_that_is_gone_is_not_sent(sender: CopyNode, receiver: CopyNode) -> None:
    own = sender.arena()
    held = taken(own, 0, 5)
    own.void(0)
    sender.push(own, held, receiver)
    assert sender.outcome() == CopyNotPushed(
        5, "the snapshot of step 5 of rank 0 is not in memory any more"
    )


def test_without_a_free_slot_the_copy_is_turned_down(sender: CopyNode, receiver: CopyNode) -> None:
    own, replica = sender.arena(), receiver.hold(0)
    taken(replica, 0, 3)
    taken(replica, 1, 4)
    replica.pin(layout.KEPT, 3)
    sender.push(own, taken(own, 0, 5), receiver, kept=4)
    assert "would overwrite the step that is kept" in sender.outcome().why
    assert steps(replica) == {3: True, 4: True}


def test_a_copy_overwrites_nothing_when_the_ranks_of_the_receiver_are_gone(
    sender: CopyNode, receiver: CopyNode
) -> None:
    """Its leader may choose any of what is there for the next cycle."""
    own, replica = sender.arena(), receiver.hold(0)
    taken(replica, 0, 3)
    taken(replica, 1, 4)
    replica.list_all(is_shared=True)
    sender.push(own, taken(own, 0, 5), receiver)
    assert "that the next cycle may begin from" in sender.outcome().why
    assert steps(replica) == {3: True, 4: True}


@pytest.mark.parametrize(
    ("n_bytes", "rank", "why"),
    [
        (2 * MIB, 0, "it has 2097152 bytes, and there is room for 1048576"),
        (MIB, 1, "this node holds no copies of rank 1"),
    ],
)
def test_a_copy_that_is_too_large_or_not_expected_is_turned_down(
    sender: CopyNode, receiver: CopyNode, n_bytes: int, rank: int, why: str
) -> None:
    own, replica = sender.arena(), receiver.hold(0, bytes_max=MIB)
    sender.push(own, taken(own, 0, 5, n_bytes, rank=rank), receiver)
    assert why in sender.outcome().why
    assert why in refused(receiver).why
    assert steps(replica) == {}


def test_a_peer_that_is_not_there_is_named(sender: CopyNode) -> None:
    own = sender.arena()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    sender.push(own, taken(own, 0, 5), port)
    why = f"the process for copies at 127.0.0.1, port {port}, cannot be reached: Connection refused"
    assert sender.outcome() == CopyNotPushed(5, why)


@pytest.mark.parametrize(
    ("secret", "job"), [("another", "job"), (None, "job"), ("secret", "another")]
)
def test_a_process_of_another_job_gets_nothing(
    receiver: CopyNode, secret: str | None, job: str
) -> None:
    """Neither side: the sender does not send to it, and it does not read from the sender."""
    replica = receiver.hold(0)
    with CopyNode(secret, job=job) as other:
        own, theirs = other.arena(), other.hold(0)
        other.push(own, taken(own, 0, 5), receiver)
        assert isinstance(other.outcome(), CopyNotPushed)
        mine = receiver.arena()
        receiver.push(mine, taken(mine, 0, 6), other)
        found = receiver.outcome()
        while isinstance(found, messages.Note):
            found = receiver.outcome()
        assert isinstance(found, CopyNotPushed)
        assert steps(replica) == steps(theirs) == {}


# ---------------------------------------------------------------- a sender that is not ours
def admitted(receiver: CopyNode) -> SlotStream:
    """A connection of a sender that holds the secret, and then does as the test says."""
    stream = SlotStream(socket.create_connection(("127.0.0.1", receiver.port)))
    own = "0" * 32
    stream.say(GreetReceiver("job", own))
    answer = stream.next_message(messages.FIRST_ANSWERS)
    assert isinstance(answer, messages.ReceiverProof)
    assert SECRET.is_proof(answer.proof, "receiver", own, answer.nonce)
    stream.say(SenderProof(SECRET.proof("sender", own, answer.nonce)))
    assert stream.next_message(messages.SECOND_ANSWERS) == messages.SenderAdmitted()
    return stream


HELD = Held(0, 8, 0, 0, 5)


def begun(receiver: CopyNode, n_bytes: int = MIB) -> SlotStream:
    stream = admitted(receiver)
    stream.say(CopyBegins(HELD, n_bytes, 0))
    assert stream.next_message(messages.DECISIONS) == messages.CopyWanted()
    return stream


def raw(stream: SlotStream, data: bytes) -> None:
    stream.send_frame(data, 10.0)


@pytest.mark.parametrize(
    ("sent", "then", "why"),
    [
        (MIB // 2, None, "closed the connection after 524288 of 1048576 bytes"),
        (MIB, None, "closed the connection"),
        (MIB, CopyEnds(1, None), "its checksum is"),
        (MIB, messages.CopyDropped(), "the rank has written there meanwhile"),
        (MIB, CopyBegins(HELD, MIB, 0), "sent a malformed message"),
        (MIB + 500, CopyEnds(0, None), "sent a malformed message"),
    ],
)
def test_a_copy_that_is_cut_or_false_is_not_committed(
    receiver: CopyNode, sent: int, then: Any, why: str
) -> None:
    replica = receiver.hold(0)
    taken(replica, 0, 4)
    with begun(receiver) as stream:
        raw(stream, content(5, sent))
        if then is not None:
            stream.say(then)
        stream.hang_up() if then is None else None
        assert why in refused(receiver).why
    assert steps(replica) == {4: True}


def test_bytes_before_they_are_asked_for_are_refused(receiver: CopyNode) -> None:
    replica = receiver.hold(0)
    with admitted(receiver) as stream:
        raw(stream, frame(encode(CopyBegins(HELD, MIB, 0))) + content(5, 1000))
        assert "sent bytes before they were asked for" in refused(receiver).why
    assert steps(replica) == {}


def test_memory_that_is_dropped_is_not_written_any_more(receiver: CopyNode) -> None:
    """The answer comes when its thread has ended, although its sender says nothing."""
    replica = receiver.hold(0)
    with begun(receiver) as stream:
        raw(stream, content(5, 1000))
        assert receiver.outcome() == CopyUnderWay(0)
        receiver.drop(0)
        assert {type(receiver.outcome()) for _ in range(2)} == {CopyRefused, CopiesDropped}
    assert steps(replica) == {}


def test_one_copy_of_a_rank_is_received_at_a_time(receiver: CopyNode) -> None:
    receiver.hold(0)
    with begun(receiver), admitted(receiver) as second:
        second.say(CopyBegins(HELD, MIB, 0))
        answer = second.next_message(messages.DECISIONS)
        assert answer == messages.CopyTurnedDown("another copy of rank 0 is being received")


def test_a_copy_that_stalls_makes_way_for_another_one() -> None:
    """Its sender may be a node that was lost; another one has the same snapshot."""
    before = "import holdfast.arena.copy_transfer as it; it.STALLED_S = 0.1\n"
    with CopyNode(before=before) as receiver, CopyNode() as sender:
        own, replica = sender.arena(), receiver.hold(0)
        held = taken(own, 0, 5)
        with begun(receiver):

            def is_pushed() -> bool:
                sender.push(own, held, receiver)
                return bool(sender.outcome() == CopyPushed(5))

            until(is_pushed, "the copy")
        assert steps(replica) == {5: True}


GARBAGE = [
    b"",
    b"\0",
    b"\0\0\0\2{}",
    b"\xff" * 64,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0\0\x10\1" + b" " * 4097,
    frame({"op": "greetreceiver", "job": "job", "nonce": "zz"}),
    frame({"op": "greetreceiver", "job": 7, "nonce": "0" * 32}),
    frame({"op": "senderproof", "proof": "0" * 64}),
    frame({"op": "copybegins", "held": [0, 1, 0, 0, 5, 0], "n_bytes": 10, "kept": 0}),
]


@pytest.mark.parametrize("data", GARBAGE)
@pytest.mark.parametrize("is_admitted", [False, True])
def test_garbage_ends_its_own_connection_only(
    sender: CopyNode, receiver: CopyNode, data: bytes, *, is_admitted: bool
) -> None:
    own, replica = sender.arena(), receiver.hold(0)
    taken(replica, 0, 4)
    if is_admitted:
        with admitted(receiver) as stream:
            raw(stream, data) if data else None
    else:
        with socket.create_connection(("127.0.0.1", receiver.port)) as stranger:
            stranger.sendall(data)
    sender.push(own, taken(own, 0, 5), receiver, kept=4)
    assert sender.outcome() == CopyPushed(5)
    assert steps(replica) == {4: True, 5: True}


def mutated(data: bytes, order: random.Random) -> bytes:
    """Bits flipped, pieces left out or doubled."""
    found = bytearray(data)
    for _ in range(order.randint(1, 3)):
        at = order.randrange(len(found))
        match order.randrange(3):
            case 0:
                found[at] ^= 1 << order.randrange(8)
            case 1:
                del found[at : at + order.randint(1, min(50, len(found) - 1))]
            case _:
                found[at:at] = found[: order.randint(1, 50)]
    return bytes(found)


@pytest.mark.parametrize("seed", range(20))
def test_fuzz_of_a_senders_stream_commits_nothing_false(receiver: CopyNode, seed: int) -> None:
    """An admitted sender whose bytes, or whose last message, or both, are not what they were."""
    order = random.Random(seed)
    replica = receiver.hold(0)
    taken(replica, 0, 4)
    body, committed = content(5, 3000), 0
    ends = frame(encode(CopyEnds(zlib.crc32(body), None)))
    for attempt in range(10):
        with begun(receiver, len(body)) as stream:
            kind = order.randrange(4) if attempt else 0
            raw(stream, mutated(body, order) if kind in (1, 3) else body)
            raw(stream, mutated(ends, order) if kind in (2, 3) else ends)
            with contextlib.suppress(OSError):  # it has hung up already
                stream._socket.shutdown(socket.SHUT_WR)
            while not isinstance(found := receiver.outcome(), CopyRefused | CopyReceived):
                pass
            assert steps(replica).pop(4)
            if isinstance(found, CopyReceived):
                committed += 1
                assert steps(replica)[5]
                replica.void(1)
    assert committed > 0


@pytest.mark.parametrize("seed", range(5))
def test_fuzz_of_the_first_messages_ends_no_process(receiver: CopyNode, seed: int) -> None:
    order = random.Random(seed)
    replica = receiver.hold(0)
    taken(replica, 0, 4)
    replica.pin(layout.KEPT, 4)
    for _ in range(20):
        with admitted(receiver) as stream:
            raw(stream, mutated(frame(encode(CopyBegins(HELD, 3000, 4))), order))
        with socket.create_connection(("127.0.0.1", receiver.port)) as stranger:
            stranger.sendall(mutated(frame(encode(GreetReceiver("job", "0" * 32))), order))
    assert steps(replica) == {4: True}
    admitted(receiver).close()


# ---------------------------------------------------------------- killed
PHASES = [
    ("receiver", "SlotStream.say", 3), ("receiver", "SlotStream.next_message", 2),
    ("receiver", "ArenaMemory.reserve", 1), ("receiver", "ArenaMemory.begin", 1),
    ("receiver", "SlotStream.receive_slot", 1), ("receiver", "ArenaMemory.commit", 1),
    ("receiver", "ArenaMemory.store_sum", 1),
    ("sender", "SlotStream.say", 4), ("sender", "SlotStream.next_message", 4),
    ("sender", "SlotStream.send_slot", 1),
]  # fmt: skip
"""A side, a method, and how many calls of it a copy has."""


def dies_at(name: str, call: int, *, after: bool, signum: int = signal.SIGKILL) -> str:
    """Code that has a process kill itself at a call of a method, or stop."""
    kind, method = name.split(".")
    module = "holdfast.arena.arena" if kind == "ArenaMemory" else "holdfast.arena.slot_stream"
    return "\n".join([
        f"from {module} import {kind}",
        "import os",
        f"real, calls = {kind}.{method}, []",
        "def dies(*given):",
        "    calls.append(1)",
        f"    is_now = len(calls) == {call}",
        f"    if is_now and not {after}: os.kill(os.getpid(), {int(signum)})",
        "    result = real(*given)",
        f"    if is_now and {after}: os.kill(os.getpid(), {int(signum)})",
        "    return result",
        f"{kind}.{method} = dies",
        "",
    ])  # fmt: skip


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("who", "name", "call"),
    [(who, name, call) for who, name, calls in PHASES for call in range(1, calls + 1)],
)
def test_a_process_that_is_killed_at_any_phase_leaves_nothing_false(
    who: str, name: str, call: int, *, after: bool
) -> None:
    """Its successor copies it, and the kept one was there all the time."""
    before = dies_at(name, call, after=after)
    with (
        CopyNode(before=before if who == "sender" else "") as sender,
        CopyNode(before=before if who == "receiver" else "") as receiver,
        CopyNode() as successor,
    ):
        own, replica = sender.arena(), receiver.arena(2)
        taken(replica, 0, 4)
        receiver.tell(HoldCopies(0, 64 * MIB), replica.fd)
        held = taken(own, 0, 5, 2 * MIB)
        sender.push(own, held, receiver, kept=4)
        victim = sender if who == "sender" else receiver
        until(victim.has_ended, f"death at {name} {call}")
        if who == "sender":
            source, to = successor, receiver
        else:
            source, to = sender, successor
            assert isinstance(sender.outcome(), CopyNotPushed | CopyPushed)
            successor.tell(HoldCopies(0, 64 * MIB), replica.fd)
        assert steps(replica) in ({4: True}, {4: True, 5: True})

        def is_pushed() -> bool:  # the thread of the cut copy may not have ended yet
            source.push(own, held, to, kept=4)
            return bool(source.outcome() == CopyPushed(5))

        until(is_pushed, "the copy")
        assert steps(replica) == {4: True, 5: True}


def test_a_slot_that_its_rank_writes_meanwhile_is_not_copied(sender: CopyNode) -> None:
    before = dies_at("SlotStream.receive_slot", 1, after=False, signum=signal.SIGSTOP)
    with CopyNode(before=before) as receiver:
        own, replica = sender.arena(), receiver.hold(0)
        sender.push(own, taken(own, 0, 5, 32 * MIB), receiver)
        os.waitid(os.P_PID, receiver.process.pid, os.WSTOPPED)
        taken(own, 0, 6, 32 * MIB)
        os.kill(receiver.process.pid, signal.SIGCONT)
        assert "the rank has written there meanwhile" in sender.outcome().why
        assert refused(receiver).why.endswith("the rank has written there meanwhile")
        assert steps(replica) == {}


def test_memory_that_the_process_does_not_take_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Copies of that rank are turned down until it is offered again."""
    with Loop() as loop:
        copies = PeerCopies(ConfigureCopies("job", "secret"), loop, "test", lambda _: None)
        try:
            memory = ArenaMemory(create("test", 2))
            [pid] = copies.pids()
            os.kill(pid, signal.SIGSTOP)
            for rank in range(20_000):
                copies.hold(rank, memory, MIB)
                if caplog.text:
                    break
            assert f"snapshots of rank {rank} are not taken in" in caplog.text
            assert f"(pid {pid}) does not read" in caplog.text
        finally:
            copies.end()
            os.close(memory.fd)


def test_a_process_that_dies_is_started_again_with_the_memory_that_it_had(
    sender: CopyNode, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = []
    with Loop() as loop:
        copies = PeerCopies(ConfigureCopies("job", "secret"), loop, "test", outcomes.append)
        try:
            fds = [create("test", 2) for _ in range(2)]
            replica, own = map(ArenaMemory, fds)
            copies.hold(0, replica, MIB)
            [pid] = copies.pids()
            os.kill(pid, signal.SIGSTOP)
            held = taken(own, 0, 7)
            number = copies.push(held, own, 0, "127.0.0.1", sender.port)
            os.kill(pid, signal.SIGKILL)
            [reaped] = until(lambda: list(child.reap([pid])), "its end")
            assert copies.died(reaped)
            [lost] = outcomes
            assert (lost.number, lost.why) == (number, "its process has ended: killed by SIGKILL")
            assert "has ended: killed by SIGKILL; it is started again" in caplog.text
            sender.push(own, held, copies.port)
            until(lambda: loop.wait(0.01) or CopyReceived(held) in outcomes, "the copy")
            assert steps(replica) == {7: True}
            dropped: list[bool] = []
            copies.drop(0, lambda: dropped.append(True))
            until(lambda: loop.wait(0.01) or dropped, "the answer")
        finally:
            [pid] = copies.pids()
            copies.end()
            os.waitpid(pid, 0)
            for fd in fds:
                os.close(fd)


def test_a_process_ends_with_its_launcher() -> None:
    with CopyNode() as node:
        node.control.hang_up()
        until(node.has_ended, "its end")


def test_a_stopped_receiver_holds_up_no_other_copy(sender: CopyNode, receiver: CopyNode) -> None:
    """Two are sent at a time."""
    own = sender.arena()
    with CopyNode() as stopped:
        stopped.hold(0)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        sender.push(own, taken(own, 0, 5), stopped)
        replica = receiver.hold(0)
        sender.push(own, taken(own, 1, 6), receiver)
        assert sender.outcome() == CopyPushed(6)
        assert steps(replica) == {6: True}
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert sender.outcome() == CopyPushed(5)


def test_it_has_little_memory_and_low_priority(sender: CopyNode, receiver: CopyNode) -> None:
    own = sender.arena()
    receiver.hold(0)
    sender.push(own, taken(own, 0, 5), receiver)
    assert sender.outcome() == CopyPushed(5)
    for node in (sender, receiver):
        status = proc.status(node.process.pid)
        own_nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, node.process.pid) == min(19, own_nice + 10)
        autogroup = Path(f"/proc/{node.process.pid}/autogroup")
        assert not autogroup.exists() or autogroup.read_text().endswith("nice 10\n")
        kib = {kind: int(status[kind].split()[0]) for kind in (b"RssAnon", b"RssFile")}
        assert kib[b"RssAnon"] < 15 << 10, kib
