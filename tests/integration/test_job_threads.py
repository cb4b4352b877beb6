"""The threads between a launcher's machines and a real store, with strangers who write there."""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import encode
from holdfast.job.pure import mailbox
from holdfast.job.pure.membership import (
    Beat,
    Decision,
    Descriptor,
    End,
    JobOutcome,
    Join,
    LeaderBeat,
    Message,
    NodeRefused,
    OpenSession,
    SessionOpened,
    StopCycle,
    WakeMailbox,
)
from holdfast.job.pure.sealed import Sealer
from holdfast.net.port import ReservedPort
from tests.garbage import fuzz, values
from tests.waiting import BOUND_S, until

job_store = pytest.importorskip("holdfast.job.store.job_store", exc_type=ImportError)
from holdfast.job.store import job_threads  # noqa: E402
from holdfast.job.store.job_threads import Callbacks, JobThreads  # noqa: E402
from holdfast.job.store.store_address import StoreAddress  # noqa: E402

HERE = "127.0.0.1"
SECRET = "correct horse battery staple"


class Launcher:
    """What a launcher's threads tell it."""

    def __init__(self, address: StoreAddress) -> None:
        self.met: list[bool] = []
        self.heard: queue.SimpleQueue[Decision] = queue.SimpleQueue()
        self.arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.lost: list[str] = []
        self.threads = JobThreads(
            address,
            Callbacks(
                run=lambda errand: errand(),
                met=lambda leads, _ours: bool(self.met.append(leads) or True),
                decided=self.heard.put,
                arrived=self.arrived.put,
                lost=self.lost.append,
            ),
        )
        self.threads.begin()


class Store:
    """Of a job; launchers that meet there, and a stranger who reaches it, too."""

    def __init__(self) -> None:
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._launchers: list[Launcher] = []
        self._made: list[Any] = []

    def launcher(
        self,
        secret: str | None = SECRET,
        *,
        leads: bool = False,
        run_id: str = "j1",
    ) -> Launcher:
        """One more; the one that leads has to be first."""
        one = Launcher(StoreAddress(HERE, self.port, leads, 30, run_id, secret=secret))
        self._launchers.append(one)
        until(lambda: one.met or one.lost, "it has met the others, or cannot")
        return one

    def stranger(self) -> Any:
        """A client of torch's, with every right that there is."""
        self._made.append(job_store.store_client(HERE, self.port, 30))
        return self._made[-1]

    def close(self) -> None:
        for one in reversed(self._launchers):
            one.threads.close()
        self._reserved.release()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Everything quick: how long there is doubt, and how long a number may be missing."""
    monkeypatch.setattr(mailbox, "HOLE_S", 0.05)
    monkeypatch.setattr("holdfast.job.store.job_threads.DOUBT_S", 0.2)
    made = Store()
    yield made
    made.close()


def talk(leader: Launcher, member: Launcher, number: int) -> None:
    """One word each way; nothing else comes before them."""
    beat, stop = Beat(f"n{number}"), StopCycle(number, "for a test")
    member.threads.post(beat)
    assert leader.arrived.get(timeout=BOUND_S) == beat
    leader.threads.publish(stop)
    assert member.heard.get(timeout=BOUND_S) == stop
    assert leader.heard.get(timeout=BOUND_S) == stop


END = encode(End(JobOutcome.FAILED, 0, "a stranger says so"))


def forged(slot: str, body: Any, session: str = "", secret: str | None = "guess") -> bytes:
    return Sealer(secret, "j1").seal(slot, session, body)


def test_launchers_with_one_secret_meet_and_those_that_come_late_hear_what_follows(
    store: Store,
) -> None:
    leader = store.launcher(leads=True)
    member = store.launcher()
    assert (leader.met, member.met) == ([True], [False])
    talk(leader, member, 1)
    late = store.launcher()
    leader.threads.publish(NodeRefused("n9", "no"))
    assert late.heard.get(timeout=BOUND_S) == NodeRefused("n9", "no")


def test_a_job_of_another_name_has_its_own_log_in_the_store(store: Store) -> None:
    """Its first launcher leads it, and neither job hears of the other."""
    host, member = store.launcher(leads=True), store.launcher()
    guest = store.launcher(run_id="j2")
    second = store.launcher(run_id="j2")
    assert (guest.met, second.met) == ([True], [False])
    talk(guest, second, 1)
    talk(host, member, 2)
    assert guest.heard.empty()
    assert host.arrived.empty()


def test_a_stranger_who_says_whose_the_store_is_makes_no_second_leader(store: Store) -> None:
    """The leader of the job answers, whatever stands there."""
    host = store.launcher(leads=True)
    store.stranger().set("holdfast/hosted_for", "'j9' \x1b[2J" + "x" * 10_000)
    member = store.launcher()
    assert (host.met, member.met) == ([True], [False])
    talk(host, member, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "says", "logs"),
    [
        (SECRET, None, "this launcher has none", "this one has one"),
        (
            None,
            SECRET,
            "this launcher has one, the leader has another or none",
            "this one has none",
        ),
        (
            SECRET,
            "another",
            "this launcher has one, the leader has another or none",
            "this one has one",
        ),
    ],
)
def test_a_launcher_with_another_secret_or_none_is_told_so_and_so_are_the_others(
    store: Store,
    caplog: pytest.LogCaptureFixture,
    ours: str | None,
    theirs: str | None,
    says: str,
    logs: str,
) -> None:
    """Both sides name the variable; neither shows a secret. The job goes on."""
    leader = store.launcher(ours, leads=True)
    member = store.launcher(ours)
    with caplog.at_level(logging.WARNING, "holdfast"):
        wrong = store.launcher(theirs)
        assert not wrong.met
        (why,) = wrong.lost
        assert "leads the job 'j1' refuses this one" in why
        assert says in why
        until(lambda: caplog.records, "the leader's warning: it answers first")
        (line,) = [record.getMessage() for record in caplog.records]
    assert "is kept out" in line
    assert logs in line
    for text in (why, line):
        assert "HOLDFAST_JOB_SECRET" in text
        assert SECRET not in text
    talk(leader, member, 1)


def test_the_end_of_a_job_cannot_be_told_by_a_stranger(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither ahead of the leader, nor in place of what it says; nor by who replays its words."""
    leader = store.launcher(leads=True)
    member = store.launcher()
    stranger = store.stranger()
    talk(leader, member, 1)
    said = stranger.get("holdfast/j1/down/1")
    session = said.split(b" ")[1].decode()
    for number in range(2, 6):
        stranger.set(f"holdfast/j1/down/{number}", forged(f"down/{number}", END, session))
    for number in range(6, 9):
        stranger.set(f"holdfast/j1/down/{number}", said)
    stranger.set("holdfast/j1/down/9", json.dumps(END))
    stranger.set("holdfast/j1/down/10", b"[" * 100_000)

    with caplog.at_level(logging.WARNING, "holdfast"):
        for number in range(2, 12):
            talk(leader, member, number)

    assert not leader.lost + member.lost
    lines = [record.getMessage() for record in caplog.records]
    assert all("is not its leader, and ignored" in line for line in lines)
    assert len(lines) == 2, "one for each launcher"


def test_what_a_stranger_writes_into_the_mailbox_is_left_out(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of nobody, in the name of others, and numbers that are taken and never used."""
    leader = store.launcher(leads=True)
    member = store.launcher()
    stranger = store.stranger()
    talk(leader, member, 1)
    leave = {"op": "leave", "node": "n1", "why": "signalled", "text": ""}
    with caplog.at_level(logging.WARNING, "holdfast"):
        for body in (b"[" * 100_000, b"{}", forged("up/3", leave), b"\xff" * 100, b""):
            number = stranger.add("holdfast/j1/up/count", 1)
            stranger.set(f"holdfast/j1/up/{number}", body)
        stranger.add("holdfast/j1/up/count", 3)
        for number in range(2, 6):
            talk(leader, member, number)

    assert leader.arrived.empty()
    assert not leader.lost
    ignored = [
        record
        for record in caplog.records
        if "is not a launcher of it, and ignored" in record.getMessage()
    ]
    assert len(ignored) == 1


def test_an_answer_that_is_a_stranger_s_is_replaced_by_the_leader_s(store: Store) -> None:
    """A launcher that is new does not give up at the first word that is not signed."""
    leader = store.launcher(leads=True)
    address = StoreAddress(HERE, store.port, False, 30, "j1", secret=SECRET)
    connection = job_store.JobStore(store.stranger, address.prefix)
    asks = JobThreads(address, Callbacks(*[lambda *_: None] * 5))  # type: ignore[arg-type]
    welcome, get, got = "welcome/", connection.get, []

    def get_a_stranger_s_word_first(slot: str) -> bytes:
        got.append(slot)
        return b"rubbish" if len(got) == 1 and slot.startswith(welcome) else get(slot)

    connection.get = get_a_stranger_s_word_first
    session, decided = asks._greet(connection)
    assert (len(session), decided) == (16, 0)
    assert leader.arrived.empty()
    connection.hang_up()


@dataclass(frozen=True)
class Dance:
    node: str


def test_signed_words_that_make_no_sense_are_passed_over(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a launcher of another version: what follows them counts."""
    leader = store.launcher(leads=True)
    member = store.launcher()
    talk(leader, member, 1)
    with caplog.at_level(logging.WARNING, "holdfast"):
        member.threads._outbox.put(Dance("n1"))
        leader.threads._decided.put(Dance("n1"))
        talk(leader, member, 2)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("cannot be used" in line and "'dance'" in line for line in lines)


def test_a_thread_that_fails_is_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was: the launcher hears of it, and leaves."""

    def fail(*_: object) -> None:
        raise RecursionError("a defect of ours")

    leader = store.launcher(leads=True)
    member = store.launcher()
    monkeypatch.setattr(leader.threads, "_open_message", fail)
    member.threads.post(Beat("n1"))
    until(lambda: leader.lost, "the launcher is told")
    assert "cannot go on: RecursionError: a defect of ours" in leader.lost[0]


# ---------------------------------------------------------------- any bytes
KNOWN = [
    encode(Beat("n1")),
    encode(Join("n1", Descriptor("10.0.0.1", "n1", 1, 7))),
    END,
    encode(LeaderBeat("so")),
    encode(StopCycle(0, "so")),
    encode(WakeMailbox()),
    encode(OpenSession("0" * 32, "me")),
    encode(SessionOpened("5e55", 7)),
]
near = st.tuples(st.sampled_from(KNOWN), st.dictionaries(st.sampled_from(
    ["op", "node", "cycle", "why", "exit_code", "nonce", "desc", "outcome", "places"]
), values, max_size=2)).map(lambda drawn: {**drawn[0], **drawn[1]})  # fmt: skip
raw = st.binary(max_size=60) | st.sampled_from(
    [b"[" * 100_000, b'{"a":' * 5000, b"9" * 5000, b"holdfast1 ", b"\xff\xfe", b"holdfast1  " * 9]
)
SLOTS = ("up/{}", "down/{}", "welcome/{}")
strangers = st.lists(
    st.one_of(
        st.tuples(st.just("take numbers"), st.integers(1, 3)),
        st.tuples(st.just("post"), near | values | raw),
        st.tuples(st.just("write ahead"), st.sampled_from(SLOTS), st.integers(0, 3), near | raw),
        st.tuples(st.just("replay"), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=4,
)


class Stranger:
    """Does to a store what Hypothesis thinks of; has seen everything, and has no secret."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def act(self, what: str, *args: Any, decided: int) -> None:
        key = "holdfast/j1/{}".format
        if what == "take numbers":
            self._client.add(key("up/count"), args[0])
        elif what == "post":
            number = self._client.add(key("up/count"), 1)
            self._client.set(key(f"up/{number}"), self._bytes(f"up/{number}", args[0], decided))
        elif what == "write ahead":
            ahead = self._client.add(key("up/count"), 0) if args[0][0] == "u" else decided
            slot = args[0].format(ahead + 1 + args[1])
            self._client.set(key(slot), self._bytes(slot, args[2], decided))
        else:
            said = self._client.get(key(f"down/{decided}"))
            self._client.set(key(f"down/{decided + 1 + args[0]}"), said)
            number = self._client.add(key("up/count"), 1)
            self._client.set(key(f"up/{number}"), said)

    def _bytes(self, slot: str, body: Any, decided: int) -> bytes:
        if isinstance(body, bytes):
            return body
        if isinstance(body, dict) and len(body) % 2:
            session = self._client.get(f"holdfast/j1/down/{decided}").split(b" ")[1]
            return forged(slot, body, session.decode())
        return json.dumps(body).encode()


@fuzz
@given(acts=st.data())
def _fuzz(parts: dict[str, Any], acts: st.DataObject) -> None:
    drawn = acts.draw(strangers)
    for what, *args in drawn:
        parts["stranger"].act(what, *args, decided=parts["decided"])
    parts["decided"] += 1
    talk(parts["leader"], parts["member"], parts["decided"])
    assert not parts["leader"].lost + parts["member"].lost


def test_fuzz_no_byte_in_the_store_stops_the_job(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of them a message comes through, a decision is heard, and nothing else was."""
    monkeypatch.setattr(mailbox, "LATE_S", 0.05)
    monkeypatch.setattr(mailbox, "LOOK_AGAIN_S", 0.002)
    leader = store.launcher(leads=True)
    member = store.launcher()
    talk(leader, member, 1)
    _fuzz(
        {"leader": leader, "member": member, "stranger": Stranger(store.stranger()), "decided": 1}
    )
    assert leader.arrived.empty()
    assert member.heard.empty()


def test_threads_that_are_stuck_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's exit waits so long for all of them, not for each."""
    now = 0.0

    class Stuck:
        def join(self, timeout: float) -> None:
            nonlocal now
            now += timeout

    monkeypatch.setattr(job_threads.clock, "monotonic", lambda: now)

    job_threads._join([Stuck(), None, Stuck(), Stuck()], 5.0)

    assert now == 5.0
