"""Connections of a job's launchers over real sockets, with strangers who call there, too."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import decode, encode
from holdfast.job.link import leader_call
from holdfast.job.link.finding import Finder, _listen
from holdfast.job.link.job_server import JobServer
from holdfast.job.link.leader_link import LeaderLink, LinkCallbacks
from holdfast.job.pure import link as words
from holdfast.job.pure.membership import (
    DECISIONS,
    MESSAGES,
    Beat,
    Decision,
    Descriptor,
    Join,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    Offer,
    StopCycle,
)
from holdfast.net.channel import Channel
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.frames import Decoder
from tests.garbage import encoded, fuzz, streams
from tests.message_strategies import shape
from tests.waiting import BOUND_S

HERE = "127.0.0.1"
SECRET = "correct horse battery staple"


class Party:
    """Launchers of one process, on one epoll."""

    def __init__(self) -> None:
        self.descriptors = Descriptors()
        self.lines: list[str] = []
        self._ends: list[Any] = []

    def leader(
        self, run_id: str = "j1", secret: str | None = SECRET, *, leads: bool = True
    ) -> Leader:
        made = Leader(self, run_id, secret, leads=leads)
        self._ends.append(made)
        return made

    def member(
        self, leader: Leader | None, number: int = 1, *, port: int = 0, **options: Any
    ) -> Member:
        made = Member(self, port if leader is None else leader.server.port, number, **options)
        self._ends.append(made)
        return made

    def until(self, condition: Any, what: str) -> Any:
        """Serve all of them until it is true."""
        give_up_at = time.monotonic() + BOUND_S
        while not (value := condition()):
            assert time.monotonic() < give_up_at, f"not within {BOUND_S:g} s: {what}"
            self.descriptors.wait(0.01)
        return value

    def close(self) -> None:
        for end in reversed(self._ends):
            end.close()
        self.descriptors.epoll.close()


class Leader:
    """``leads`` False: it might come to."""

    def __init__(
        self, party: Party, run_id: str, secret: str | None, *, leads: bool = True
    ) -> None:
        self.led_by: list[tuple[str, int, int, str]] = []
        self.messages: list[Message] = []
        self.ended: list[str] = []
        self.server = JobServer(
            _listen(0),
            party.descriptors,
            run_id,
            secret,
            30.0,
            party.lines.append,
            self.messages.append,
            lambda *at: self.led_by.append(at),
        )
        if leads:
            self.lead()

    def lead(self) -> None:
        self.server.lead(self.ended.append)

    def close(self) -> None:
        self.server.close(0.0)


class Member:
    """A launcher; ``port``: where it would serve, 0: a listener of its own."""

    def __init__(
        self,
        party: Party,
        leaders_port: int,
        number: int,
        *,
        run_id: str = "j1",
        secret: str | None = SECRET,
        behind_firewall: bool = False,
        **link: Any,
    ) -> None:
        self.reached = 0
        self.released: list[words.NotAdmitted] = []
        self.stepped_down: list[str] = []
        self._party = party
        self.node = f"n{number}"
        self.admitted = 0
        self.decisions: list[Decision] = []
        self.answers: list[Any] = []
        self.broken: list[str] = []
        self.lost: list[str] = []
        self.port = leaders_port
        self.listener = _listen(0)
        self.serves_at: int = self.listener.getsockname()[1]
        self.dead: socket.socket | None = None
        self.link = LeaderLink(
            party.descriptors,
            run_id,
            secret,
            self.node,
            f"host of {self.node}",
            LinkCallbacks(
                admitted=self._admitted,
                decided=self.decisions.append,
                led_elsewhere=self.answers.append,
                lead=self.answers.append,
                broken=self._broken,
                lost=self.lost.append,
                ended=self.lost.append,
                log=party.lines.append,
                reached=self._reached,
                released=self.released.append,
                stepped_down=self.stepped_down.append,
            ),
            **link,
        )
        self.comes_back = True
        if behind_firewall:
            self.dead = socket.socket()
            self.dead.bind((HERE, 0))
            self.serves_at = self.dead.getsockname()[1]
        self.connect()

    def connect(self) -> None:
        connected = socket.create_connection((HERE, self.port))
        self.link.connected(connected, HERE, self.serves_at)

    def _admitted(self) -> None:
        self.admitted += 1

    def _reached(self) -> None:
        self.reached += 1

    def _broken(self, why: str) -> None:
        self.broken.append(why)
        if self.comes_back and (self.admitted or self.reached):
            self.connect()

    def cut(self) -> None:
        """Break the connection, as something between the hosts may."""
        channel = self.link._channel
        assert channel is not None
        channel._socket.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        """As the process does: the connection and the listener go."""
        self.comes_back = False
        self.listener.close()
        self.cut()

    def close(self) -> None:
        self.link.close(0.0)
        self.listener.close()
        if self.dead is not None:
            self.dead.close()


@pytest.fixture
def party() -> Iterator[Party]:
    made = Party()
    yield made
    made.close()


def talk(party: Party, leader: Leader, member: Member, number: int) -> None:
    """One word each way; nothing else comes before them."""
    beat, stop = Beat(member.node, number), StopCycle(number, "for a test")
    party.until(lambda: member.admitted, "it is admitted")
    leader.messages.clear()
    member.decisions.clear()
    member.link.send(beat)
    leader.server.publish(stop)
    party.until(lambda: leader.messages and member.decisions, "a word each way")
    assert (leader.messages, member.decisions) == ([beat], [stop])


def test_launchers_with_one_secret_meet_and_those_that_come_late_read_what_follows(
    party: Party,
) -> None:
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    late = party.member(leader, 2)
    party.until(lambda: late.admitted, "it is admitted")
    leader.server.publish(LeaderBeat("so"))
    party.until(lambda: late.decisions, "the next decision")
    assert late.decisions == [LeaderBeat("so")]


@pytest.mark.parametrize(
    ("ours", "theirs", "says", "logs"),
    [
        (SECRET, None, "this launcher has none", "this one has one"),
        (None, SECRET, "this launcher has one, the leader has another", "this one has none"),
        (SECRET, "another", "this launcher has one, the leader has another", "has one"),
    ],
)
def test_a_launcher_with_another_secret_is_refused_and_both_sides_say_why(
    party: Party, ours: str | None, theirs: str | None, says: str, logs: str
) -> None:
    """Both name the variable; neither shows a secret. The job goes on."""
    leader = party.leader(secret=ours)
    member = party.member(leader, secret=ours)
    wrong = party.member(leader, 2, secret=theirs)
    party.until(lambda: wrong.lost and party.lines, "both sides say so")

    (why,), (line,) = wrong.lost, party.lines
    assert "leads the job 'j1' refuses this one" in why
    assert says in why
    assert "is kept out of the job 'j1'" in line
    assert logs in line
    for text in (why, line):
        assert "HOLDFAST_JOB_SECRET" in text
        assert SECRET not in text
    talk(party, leader, member, 1)
    assert not wrong.admitted


def test_nothing_is_lost_or_comes_twice_where_connections_break(party: Party) -> None:
    """Again and again, with bytes under way in both directions."""
    leader = party.leader()
    member = party.member(leader)
    party.until(lambda: member.admitted, "it is admitted")
    for number in range(300):
        member.link.send(Beat("n1", number))
        leader.server.publish(StopCycle(number, "x" * 2000))
        if number % 20 == 10:
            member.cut()
        party.descriptors.wait(0.0)
    party.until(
        lambda: len(leader.messages) >= 300 and len(member.decisions) >= 300, "all have come"
    )
    assert [message.reported for message in leader.messages] == [*range(300)]
    assert [decision.cycle for decision in member.decisions] == [*range(300)]
    assert len(member.broken) >= 10
    assert (leader.ended, member.admitted, member.lost) == ([], 1, [])


def test_a_launcher_that_missed_too_much_is_lost(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than is kept for it."""
    monkeypatch.setattr(words, "KEPT_BYTES", 1000)
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    member.comes_back = False
    member.cut()
    party.until(lambda: member.broken, "the connection is gone")
    for number in range(20):
        leader.server.publish(StopCycle(number, "x" * 100))
    member.connect()
    party.until(lambda: member.lost, "it is refused")
    assert "it has missed too much" in member.lost[0]


def test_only_a_launcher_whose_port_is_dead_has_ended(party: Party) -> None:
    """Its kernel refuses a connection there; a connection that breaks says nothing."""
    leader = party.leader()
    cut_off, dead, left = (party.member(leader, number) for number in (1, 2, 3))
    for member in (cut_off, dead, left):
        member.link.send(Beat(member.node))
    left.link.send(Leave("n3", LeaveWhy.FINISHED))
    party.until(lambda: len(leader.messages) == 4, "all have spoken")

    cut_off.comes_back = False
    cut_off.cut()
    dead.die()
    left.die()

    party.until(lambda: leader.ended, "its end")
    talk(party, leader, party.member(leader, 4), 1)
    assert leader.ended == ["n2"]


def test_a_launcher_whose_port_never_answered_is_not_believed_dead(party: Party) -> None:
    """A firewall between them refuses connections, too."""
    leader = party.leader()
    behind = party.member(leader, 1, behind_firewall=True)
    seen = party.member(leader, 2)
    for member in (behind, seen):
        member.link.send(Beat(member.node))
    party.until(lambda: len(leader.messages) == 2, "both have spoken")
    behind.die()
    party.until(lambda: behind.broken, "its connection is gone")
    seen.die()
    party.until(lambda: leader.ended, "the end of the other")
    assert leader.ended == ["n2"]


def test_a_launcher_that_has_gone_as_it_is_admitted_is_none_of_the_job(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its proof was there to be read when its connection was reset; others come, and go on."""
    leader = party.leader()

    def gone(_channel: Channel) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "addresses", gone)
        member = party.member(leader)
        party.until(lambda: member.broken, "its connection is closed")
    assert leader.server.reached_at() is None
    talk(party, leader, party.member(leader, 2), 1)


def test_a_call_without_an_answer_is_no_answer(party: Party) -> None:
    """A launcher that is stopped: its kernel accepts the connection; it is called again."""
    with _listen(0) as silent:
        member = party.member(None, port=silent.getsockname()[1], leads=3, answer_s=0.0)
        member.link.on_time()
        party.until(lambda: member.broken, "it is given up")
    assert not member.lost


def test_a_leader_that_was_started_again_is_another(party: Party) -> None:
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    again = party.leader()
    member.port = again.server.port
    member.cut()
    party.until(lambda: member.lost, "it is refused")
    assert "the job was started again" in member.lost[0]
    assert not again.messages


def test_a_launcher_of_a_job_that_runs_never_leads_it_a_second_time(party: Party) -> None:
    """Where another job's launcher has the leader's address by now, the leader is lost."""
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    member.port = party.leader("j2").server.port
    member.cut()
    party.until(lambda: member.lost, "it gives its leader up")
    assert "another job is led there" in member.lost[0]
    assert not member.answers


def test_launchers_of_another_job_are_led_to_the_first_of_it(party: Party) -> None:
    """And to its successor, once they have found it dead; neither job reads of the other."""
    host = party.leader()
    first = party.member(host, 1, run_id="j2")
    party.until(lambda: first.answers, "an answer")
    assert first.answers == [words.LeadYourself("'j1'")]

    second = party.member(host, 2, run_id="j2")
    party.until(lambda: second.answers, "an answer")
    at = first.listener.getsockname()[1]
    assert second.answers == [words.LedElsewhere(HERE, at, "'j1'")]

    second.link.gone = f"{HERE} {at}"
    second.connect()
    party.until(lambda: len(second.answers) == 2, "an answer")
    assert second.answers[1] == words.LeadYourself("'j1'")
    assert not host.messages
    assert not party.lines


def test_a_witness_of_another_job_comes_again_until_that_has_a_leader(party: Party) -> None:
    """It is not told to lead, and no launcher is led to it."""
    host = party.leader()
    witness = party.member(host, 1, run_id="j2", is_witness=True)
    witness.comes_back = False
    party.until(lambda: witness.broken, "it is cut off")
    assert not witness.answers

    first = party.member(host, 2, run_id="j2")
    party.until(lambda: first.answers, "an answer")
    assert first.answers == [words.LeadYourself("'j1'")]

    witness.connect()
    party.until(lambda: witness.answers, "an answer")
    at = first.listener.getsockname()[1]
    assert witness.answers == [words.LedElsewhere(HERE, at, "'j1'")]
    assert not host.messages


def test_words_of_another_version_are_passed_over(party: Party) -> None:
    """What follows them counts."""
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    member.link._messages.add(frame := encoded({"op": "dance", "node": "n1"}))
    assert member.link._channel is not None
    member.link._channel.send_frame(frame)
    leader.server._decisions.add(frame)
    leader.server._launchers["n1"].channel.send_frame(frame)  # type: ignore[union-attr]
    talk(party, leader, member, 2)
    assert len(party.lines) == 2
    assert all("cannot be used" in line and "'dance'" in line for line in party.lines)


# ---------------------------------------------------------------- strangers
def dialogue(party: Party, port: int, *parts: bytes) -> bytes:
    """Send each part, and read what comes, until the other end closes."""
    heard = b""
    with socket.create_connection((HERE, port)) as stranger:
        stranger.settimeout(0.0)
        waiting = [*parts]

        def is_over() -> bool:
            nonlocal heard
            try:
                if waiting:
                    stranger.sendall(waiting.pop(0))
                    if not waiting:
                        stranger.shutdown(socket.SHUT_WR)
                data = stranger.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                return True
            heard += data
            return not data

        party.until(is_over, "the end of the connection")
    return heard


def test_what_was_recorded_in_one_connection_proves_nothing_in_another(party: Party) -> None:
    """Nor does the leader's own proof, sent back to it."""
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    secret, nonce = words.Secret(SECRET, "'j1'"), "0" * 32
    said = encode(words.GreetLeader("'j1'", nonce, "n9", "n9", HERE, 9))
    greeting, text = encoded(said), words.as_sent(said)
    recorded = words.LauncherProof(secret.proof("launcher", text, "1" * 32))
    leave = encoded(encode(Leave("n1", LeaveWhy.SIGNALLED)))

    for proof in (recorded, words.LauncherProof(secret.proof("leader", text, nonce))):
        answer = dialogue(party, leader.server.port, greeting + encoded(encode(proof)) + leave)
        refused = Decoder().feed(answer)[-1]
        assert decode(words.ANSWERS, refused) == words.NotAdmitted(words.Refusal.OTHER_SECRET)

    leader.messages.clear()
    talk(party, leader, member, 2)


def test_a_leader_that_does_not_prove_itself_gets_no_proof(party: Party) -> None:
    """A launcher that is led astray tells nothing that would help elsewhere."""
    with socket.create_server((HERE, 0)) as stranger:
        leader = party.leader()
        member = party.member(leader)
        talk(party, leader, member, 1)
        lured = Member(party, stranger.getsockname()[1], 2)
        connected, _ = stranger.accept()
        with connected:
            forged = words.LeaderProof("0" * 32, "f" * 64)
            connected.sendall(encoded(encode(forged)) + encoded(encode(StopCycle(0, "so"))))
            party.until(lambda: lured.lost, "it gives up")
            connected.settimeout(BOUND_S)
            proof = Decoder()
            frames: list[Any] = []
            while len(frames) < 2:
                frames += proof.feed(connected.recv(1 << 16))
        assert decode(words.PROOFS, frames[1]) == words.LauncherProof("")
        assert not lured.admitted
        assert not lured.decisions
        lured.close()


@pytest.mark.parametrize("change", [{}, {"offers": True}, {"offers": True, "launcher": "n9"}])
def test_no_launcher_s_own_port_proves_to_it_that_a_stranger_leads(
    party: Party, change: dict[str, Any]
) -> None:
    """The stranger repeats the launcher's greeting there, as it is or changed."""
    own = party.leader(leads=False)
    own.server._own = "n1"
    with socket.create_server((HERE, 0)) as stranger:
        options = {} if change else {"offers": True}
        lured = Member(party, stranger.getsockname()[1], 1, **options)
        connected, _ = stranger.accept()
        with connected, socket.create_connection((HERE, own.server.port)) as reflecting:
            connected.settimeout(BOUND_S)
            (greeting,) = Decoder().feed(connected.recv(1 << 16))
            reflecting.sendall(encoded({**greeting, **change}))
            reflecting.setblocking(False)
            answers = Decoder()
            heard: list[bytes] = []

            def is_answered() -> bool:
                try:
                    heard.append(reflecting.recv(1 << 16))
                except BlockingIOError:
                    return False
                return True

            party.until(is_answered, "an answer, or the end")
            said = answers.feed(heard[0])
            connected.sendall(heard[0] or encoded(encode(words.LeaderProof("0" * 32, "f"))))
            party.until(lambda: lured.lost, "it gives up")
        assert bool(said) == ("launcher" in change)
        assert not lured.admitted
        assert not lured.reached
        lured.close()


def test_a_leader_that_only_says_that_a_launcher_is_admitted_is_not_believed(
    party: Party,
) -> None:
    """Its proof has to come before, in the same connection."""
    with socket.create_server((HERE, 0)) as stranger:
        lured = party.member(None, 2, port=stranger.getsockname()[1])
        connected, _ = stranger.accept()
        with connected:
            admitted = encoded(encode(words.Admitted("5e55", 0, 0)))
            connected.sendall(admitted + encoded(encode(StopCycle(0, "so"))))
            party.until(lambda: lured.lost, "it gives up")
    assert not lured.admitted
    assert not lured.decisions


GREETING = {
    **shape(words.GreetLeader),
    "job": st.sampled_from(["'j1'", "'j1'", "'j1'", "'j2'"]),
    "nonce": st.just("0" * 32),
}
KNOWN = [
    shape(kind)
    for family in (words.GREETINGS, words.PROOFS, words.ANSWERS, MESSAGES, DECISIONS)
    for kind in family.values()
]


@pytest.fixture(scope="module")
def job() -> Iterator[tuple[Party, Leader, Member, list[int]]]:
    party = Party()
    leader = party.leader()
    yield party, leader, party.member(leader), [0]
    party.close()


@fuzz
@given(data=streams(GREETING, *KNOWN))
def test_fuzz_no_byte_of_a_stranger_stops_a_job(
    job: tuple[Party, Leader, Member, list[int]], data: bytes
) -> None:
    """After each of them a word comes through both ways, and nothing else did."""
    party, leader, member, number = job
    dialogue(party, leader.server.port, data)
    number[0] += 1
    talk(party, leader, member, number[0])
    assert not member.lost + leader.ended


@fuzz
@given(data=streams(*[shape(kind) for kind in words.ANSWERS.values()], *KNOWN))
def test_fuzz_no_byte_at_a_false_endpoint_gets_a_launcher_into_a_job(data: bytes) -> None:
    party = Party()
    with socket.create_server((HERE, 0)) as stranger:
        lured = Member(party, stranger.getsockname()[1], 2)
        connected, _ = stranger.accept()
        with connected:
            connected.sendall(data)
            connected.shutdown(socket.SHUT_WR)
            party.until(
                lambda: lured.lost or lured.broken or lured.answers, "the end of the connection"
            )
        assert not lured.admitted
        assert not lured.decisions
        lured.close()
    party.close()


def test_a_nonce_is_never_used_twice(monkeypatch: pytest.MonkeyPatch, party: Party) -> None:
    """Each connection of each side draws its own."""
    drawn: list[bytes] = []
    draw = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: drawn.append(draw(size)) or drawn[-1])
    leader = party.leader()
    member = party.member(leader)
    talk(party, leader, member, 1)
    member.cut()
    talk(party, leader, member, 2)
    nonces = [it for it in drawn if len(it) == words.NONCE_BYTES]
    assert len(nonces) == len({*nonces}) == 4


# ---------------------------------------------------------------- leadership moves
def vote(node: str) -> Offer:
    return Offer(node, 1, Join(node, Descriptor(HERE, node, 1, 1)), (0, 0, 0))


def test_a_launcher_admits_those_that_have_voted_for_it_when_it_leads(party: Party) -> None:
    """The vote is the first message; more may follow it; a break in between loses neither."""
    candidate = party.leader(leads=False)
    voter = party.member(candidate, offers=True)
    party.until(lambda: voter.reached, "it answers")
    voter.link.give(vote("n1"))
    voter.link.send(Beat("n1", 7))
    party.until(lambda: len(candidate.messages) == 2, "the vote has come")
    voter.cut()
    party.until(lambda: len(candidate.messages) == 4, "it has come again")
    assert not voter.admitted

    candidate.lead()

    party.until(lambda: voter.admitted, "it is admitted")
    assert candidate.messages == [vote("n1"), Beat("n1", 7)] * 2
    talk(party, candidate, voter, 1)
    voter.cut()
    talk(party, candidate, voter, 2)
    assert (voter.lost, candidate.ended) == ([], [])


def test_a_launcher_that_comes_before_the_other_one_leads_may_come_again(party: Party) -> None:
    """The key of a rendezvous backend names a launcher a moment before it leads."""
    other = party.leader(leads=False)
    early = party.member(other)
    party.until(lambda: early.broken, "it is sent away")
    other.lead()

    early.connect()

    talk(party, other, early, 1)
    assert early.lost == []


def test_votes_are_given_back_over_the_connections_that_brought_them(party: Party) -> None:
    candidate = party.leader(leads=False)
    voters = [party.member(candidate, number, offers=True) for number in (1, 2, 3)]
    for number, voter in enumerate(voters, start=1):
        party.until(lambda voter=voter: voter.reached, "it answers")
        voter.link.give(vote(f"n{number}"))
    party.until(lambda: len(candidate.messages) == 3, "the votes have come")
    channels = [candidate.server._launchers[node].channel for node in ("n1", "n3")]

    candidate.server.release(("n1", "n3"), 5, asks=True)

    first, kept, third = voters
    party.until(lambda: None not in {it.gone for it in channels}, "these have left")
    for voter in (first, third):
        [released] = voter.released
        assert (released.term, released.asks, voter.broken) == (5, True, [])
    candidate.lead()
    party.until(lambda: kept.admitted, "the other one follows")
    assert (kept.released, first.admitted, third.admitted) == ([], 0, 0)


def test_a_launcher_may_have_its_vote_back_more_than_once(party: Party) -> None:
    candidate = party.leader(leads=False)
    for times in (1, 2):
        voter = party.member(candidate, offers=True)
        party.until(lambda voter=voter: voter.reached, "it answers")
        voter.link.give(vote("n1"))
        party.until(lambda times=times: len(candidate.messages) == times, "the vote has come")
        channel = candidate.server._launchers["n1"].channel

        candidate.server.release(["n1"], times)

        party.until(lambda voter=voter: voter.released, "it has its vote back")
        party.until(lambda channel=channel: channel.gone is not None, "it has left")


def test_a_voter_that_died_is_reported_when_the_launcher_leads(party: Party) -> None:
    """Else it would be waited for, as long as for one that is silent."""
    candidate = party.leader(leads=False)
    voter = party.member(candidate, offers=True)
    party.until(lambda: voter.reached, "it answers")
    voter.link.give(vote("n1"))
    party.until(lambda: candidate.messages, "the vote has come")
    launcher = candidate.server._launchers["n1"]
    party.until(lambda: launcher.answers, "its port has answered")
    voter.die()
    party.until(lambda: launcher.has_left, "it is found dead")

    candidate.lead()

    assert candidate.ended == ["n1"]


def test_only_a_launcher_with_the_secret_may_vote(party: Party) -> None:
    candidate = party.leader(leads=False)
    stranger = party.member(candidate, 2, secret="another", offers=True)
    party.until(lambda: stranger.lost, "it is refused")
    assert (stranger.reached, candidate.messages) == (0, [])


def test_a_launcher_at_the_endpoint_learns_where_its_job_is_led_and_sends_others_on(
    party: Party,
) -> None:
    """Those that it has admitted already come again, with all that they have sent."""
    leader, anew = party.leader(), party.leader()
    early = party.member(anew, 2)
    party.until(lambda: early.admitted, "it is admitted by the wrong one")
    early.link.send(Beat("n2", 1))

    party.member(anew, 1, leads=3)
    [(addr, port, term, _)] = party.until(lambda: anew.led_by, "it is called")
    anew.server.led_by(addr, leader.server.port)

    assert (addr, term) == (HERE, 3)
    assert port != leader.server.port
    [answer] = party.until(lambda: early.answers, "it is sent on")
    assert answer == words.LedElsewhere(HERE, leader.server.port, "")
    early.port = answer.port
    early.connect()
    party.until(lambda: leader.messages, "what it has sent comes to the right one")
    assert (leader.messages, early.lost) == ([Beat("n2", 1)], [])


class Connects:
    """As :class:`.Finder`; ``tried``: how often."""

    def __init__(self) -> None:
        self.tried = 0

    def find_candidate(self, addr: str, port: int) -> socket.socket:
        self.tried += 1
        return socket.create_connection((addr, port))


@pytest.mark.parametrize("once", [True, False])
def test_a_leader_calls_the_one_before_until_it_has_answered_and_the_endpoint_for_ever(
    party: Party, once: bool
) -> None:
    """The one before may have slept, and believe that it leads."""
    before, finder = party.leader(), Connects()

    def make_link(callbacks: LinkCallbacks) -> LeaderLink:
        return LeaderLink(party.descriptors, "j1", SECRET, "n1", "host of n1", callbacks, leads=3)

    at = (HERE, before.server.port)
    about = at, cast(Finder, finder), (HERE, 7), make_link, lambda: None
    since: list[float] = []

    def pause_s(since_s: float) -> float:
        since.append(since_s)
        return 0.01

    call = leader_call.LeaderCall(*about, once=once, pause_s=pause_s)

    def calls() -> int:
        call.on_connected()
        call.on_time()
        return len(before.led_by)

    party.until(calls, "it is called")
    assert set(before.led_by) == {(HERE, 7, 3, "n1")}
    if once:
        party.until(lambda: calls() and call.has_answered, "it has answered")
        tried = finder.tried
        for _ in range(5):
            calls()
            party.descriptors.wait(0.01)
        assert (finder.tried, call.next_deadline()) == (tried, None)
    else:
        party.until(lambda: calls() > 2, "it is called again and again")
        assert since == sorted(since), "the pause may grow with the time since the first call"
        assert since[-1] > since[0]
    call.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_way_that_broke_before_a_leader_stepped_down_is_no_proof_of_its_death_when_it_leads_again(
    party: Party, times: int
) -> None:
    leader = party.leader()
    member = party.member(leader, 2)
    party.until(lambda: member.admitted, "it is admitted")
    member.comes_back = False
    member.cut()
    party.until(lambda: member.broken, "the connection is broken")
    for _ in range(times):
        leader.server.step_down()
        leader.lead()
    member.connect()
    party.until(lambda: member.stepped_down, "it learns that")
    assert member.lost == []


def test_a_stranger_does_not_make_a_leader_step_down(party: Party) -> None:
    leader = party.leader()
    stranger = party.member(leader, 2, secret="another", leads=9)
    party.until(lambda: stranger.lost, "it is refused")
    assert leader.led_by == []
