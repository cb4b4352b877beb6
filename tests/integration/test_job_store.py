"""The job's mailbox and log over real stores of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.job.pure import mailbox as mailbox_rules
from holdfast.net.port import ReservedPort
from tests.waiting import until

FileStore = pytest.importorskip("torch.distributed").FileStore
job_store = pytest.importorskip("holdfast.job.store.job_store", exc_type=ImportError)


def plain(text: str) -> Any:
    """A message that anybody may write."""
    return lambda _slot: text.encode()


def anything(_slot: str, body: bytes) -> bytes:
    """Takes any value for one of ours."""
    return body


def ours(_slot: str, body: bytes) -> bytes | None:
    """Takes what says so for one of ours."""
    return body if body.startswith(b"ours") else None


@pytest.fixture
def port() -> Iterator[int]:
    reserved = ReservedPort()
    yield reserved.number
    reserved.release()


def test_a_wait_for_a_decision_ends_when_the_connection_is_hung_up(port: int) -> None:
    """With the error of a store that is lost; the other connections stay."""
    hosted = job_store.host_store("127.0.0.1", port, 30, "j1")
    a, b = (
        job_store.JobStore(lambda: job_store.store_client("127.0.0.1", port, 30), "job")
        for _ in range(2)
    )
    ended = []

    def follow() -> None:
        try:
            a.follow(1, anything)
        except ConnectionError as error:
            ended.append(error)

    waits = threading.Thread(target=follow)
    waits.start()

    a.hang_up()

    waits.join(30)
    assert not waits.is_alive()
    assert [type(error) for error in ended] == [job_store.StoreLostError]
    b.publish(1, plain("still here"))
    assert b.follow(1, anything) == b"still here"
    a.hang_up()
    b.hang_up()
    del hosted


class Counted:
    """A store that writes down what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)


def test_decisions_are_pushed_and_nobody_polls_for_them(port: int) -> None:
    """Whoever waits asks once, is woken by the decision, and fetches it: whatever goes on else."""
    hosted = job_store.host_store("127.0.0.1", port, 30, "j1")

    def connect() -> Any:
        return job_store.JobStore(lambda: job_store.store_client("127.0.0.1", port, 30), "job")

    followers = [connect() for _ in range(8)]
    counted = [Counted(follower._store) for follower in followers]
    heard: list[object] = []
    threads = []
    for follower, store in zip(followers, counted, strict=True):
        follower._store = store
        follow = partial(follower.follow, 1, anything)
        threads.append(threading.Thread(target=lambda follow=follow: heard.append(follow())))
        threads[-1].start()
    until(lambda: all(store.asked for store in counted), "all wait")
    leader = connect()
    for number in range(200):  # of others, and long enough for who polls to poll
        leader.post(plain(f"message {number}"))
    assert heard == []

    leader.publish(1, plain("cycle 0"))

    for thread in threads:
        thread.join(30)
    assert heard == [b"cycle 0"] * len(followers)
    assert [store.asked for store in counted] == [["wait", "get"]] * len(followers)
    for each in (*followers, leader):
        each.hang_up()
    del hosted


# ---------------------------------------------------------------- strangers
@pytest.fixture
def connect(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes connections to a store; a number without a message is asked for soon."""
    monkeypatch.setattr(mailbox_rules, "HOLE_S", 0.2)
    hosted = job_store.host_store("127.0.0.1", port, 30, "j1")
    made: list[Any] = []

    def make() -> Any:
        made.append(
            job_store.JobStore(lambda: job_store.store_client("127.0.0.1", port, 30), "job")
        )
        return made[-1]

    yield make
    for store in made:
        store.hang_up()
    del hosted


def stranger_of(store: Any) -> Any:
    """Who reaches the store can write any key."""
    return store._store


def test_numbers_that_a_stranger_takes_hold_up_nobody(connect: Any) -> None:
    """Each of them cost 5 to 10 s before, in which every node fell silent."""
    sender, stranger = connect(), stranger_of(connect())
    lost: list[tuple[int, int]] = []
    mailbox = job_store.Mailbox(connect(), ours, lambda *which: lost.append(which))
    stranger.add("job/up/count", 500)
    sender.post(plain("ours 1"))
    assert mailbox.take() == b"ours 1"
    sender.post(plain("ours 2"))
    assert mailbox.take() == b"ours 2"
    assert lost  # of the 500, those that are not looked at again


def test_a_counter_that_a_stranger_has_moved_far_away_is_followed(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at a billion numbers one by one."""
    monkeypatch.setattr(mailbox_rules, "FAR", 500)
    sender, stranger = connect(), stranger_of(connect())
    mailbox = job_store.Mailbox(connect(), ours)
    sender.post(plain("ours 1"))
    stranger.add("job/up/count", 10**9)
    sender.post(plain("ours 2"))
    assert [mailbox.take(), mailbox.take()] == [b"ours 1", b"ours 2"]


def test_messages_that_were_written_in_advance_are_replaced_by_true_ones(connect: Any) -> None:
    """The reader does not run ahead of the senders."""
    sender, stranger = connect(), stranger_of(connect())
    for number in range(1, 30):
        stranger.set(f"job/up/{number}", "rubbish")
        stranger.set(f"job/down/{number}", "rubbish")
    mailbox = job_store.Mailbox(connect(), ours)
    heard: list[bytes] = []
    takes = threading.Thread(target=lambda: heard.extend(mailbox.take() for _ in range(5)))
    follower = connect()
    follows = threading.Thread(target=lambda: heard.append(follower.follow(1, ours)))
    takes.start()
    follows.start()
    for number in range(5):
        sender.post(plain(f"ours {number}"))
    takes.join(30)
    sender.publish(1, plain("ours, decided"))
    follows.join(30)
    assert heard == [*(b"ours %d" % number for number in range(5)), b"ours, decided"]


def test_a_message_that_comes_late_is_still_taken(connect: Any) -> None:
    """Its sender was stopped between two operations; those behind it were not held up."""
    sender, slow = connect(), stranger_of(connect())
    mailbox = job_store.Mailbox(connect(), ours)
    assert slow.add("job/up/count", 1) == 1
    sender.post(plain("ours 2"))
    assert mailbox.take() == b"ours 2"
    slow.set("job/up/1", "ours 1")
    assert mailbox.take() == b"ours 1"


def test_of_one_sender_the_earlier_message_is_taken_first(connect: Any) -> None:
    """Also where the reader had passed it over."""
    sender, slow = connect(), stranger_of(connect())
    mailbox = job_store.Mailbox(connect(), ours)
    slow.add("job/up/count", 2)
    sender.post(plain("ours 3"))
    assert mailbox.take() == b"ours 3"
    slow.set("job/up/2", "ours 2")
    sender.post(plain("ours 4"))
    assert [mailbox.take(), mailbox.take()] == [b"ours 2", b"ours 4"]


def other(name: str, endpoint: str, **conf: str) -> Any:
    from holdfast.job.store.other_backends import open_backend
    from holdfast.job.store.store_address import OtherBackend

    return open_backend(OtherBackend(name, endpoint, 1, 2, None, conf), "job")


def test_a_backend_made_of_torch_s_parts_gives_the_store_of_all_its_rounds(port: int) -> None:
    """Without entering one; every connection is of its own, and can be hung up."""
    connect = other("c10d", f"127.0.0.1:{port}", is_host="1")
    a, b = (job_store.JobStore(connect, "job") for _ in range(2))

    assert [a.is_first(), b.is_first()] == [True, False]
    b.post(plain("a word"))
    assert job_store.Mailbox(a, anything).take() == b"a word"
    a.hang_up()
    with pytest.raises(job_store.StoreLostError):
        a.follow(1, anything)
    b.hang_up()


def test_a_store_without_a_socket_is_hung_up_within_a_slice(tmp_path: Path) -> None:
    """Of another backend: its waits are short, and many."""
    store = job_store.JobStore(lambda: FileStore(str(tmp_path / "store")), "job")
    store.post(plain("a word"))
    assert job_store.Mailbox(store, anything).take() == b"a word"
    store.hang_up()
    with pytest.raises(job_store.StoreLostError, match="closed the connection"):
        store.follow(1, anything)


class _Service(dict[str, str]):
    """A store that is a service of its own, as etcd is: each request may find it away."""

    def __init__(self) -> None:
        super().__init__()
        self.away_for = 0
        self.says_so = True

    def is_away(self, error: Exception) -> bool:
        return self.says_so and isinstance(error, ConnectionRefusedError)

    def _ask(self) -> None:
        if self.away_for:
            self.away_for -= 1
            raise ConnectionRefusedError("nobody there")

    def add(self, key: str, number: int) -> int:
        self._ask()
        self[key] = str(int(self.get(key, "0")) + number)
        return int(self[key])

    def set(self, key: str, value: str) -> None:
        self._ask()
        self[key] = value

    def wait(self, keys: list[str], timeout: object) -> None:
        self._ask()


@pytest.fixture
def virtual_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; it passes by what is waited."""
    now = [0.0]
    monkeypatch.setattr(job_store.clock, "monotonic", lambda: now[0])

    def pause(_store: object, for_s: float) -> None:
        now[0] += for_s

    monkeypatch.setattr(job_store.JobStore, "pause", pause)
    return now


def test_a_store_that_is_away_for_a_moment_is_tried_again(virtual_s: list[float]) -> None:
    """Every operation, and it is told once for each that begins to wait."""
    service, told = _Service(), []
    store = job_store.JobStore(lambda: service, "job", job_store.StorePatience(15.0, told.append))

    for operation in (lambda: store.post(plain("a word")), lambda: store.wait_for("up/1", 9)):
        service.away_for = 10
        operation()

    assert service["job/up/1"] == "a word"
    assert told == ["nobody there"] * 2
    assert 0 < virtual_s[0] < 15


def test_a_store_that_stays_away_is_lost(virtual_s: list[float]) -> None:
    """After the time that it is given, which the error names."""
    service = _Service()
    store = job_store.JobStore(lambda: service, "job", job_store.StorePatience(15.0))
    service.away_for = 10**6

    with pytest.raises(job_store.StoreLostError, match="nobody there, for 15 s"):
        store.post(plain("a word"))
    assert 15 <= virtual_s[0] < 16


@pytest.mark.parametrize("says_so", [True, False])
def test_a_store_is_not_tried_again_without_reason(virtual_s: list[float], says_so: bool) -> None:
    """One that says nothing of coming back; and nobody asks twice to be the first.

    An attempt that failed may have counted: the second would be refused, and nobody would lead.
    """
    service = _Service()
    service.says_so = says_so
    store = job_store.JobStore(lambda: service, "job", job_store.StorePatience(15.0))
    service.away_for = 1

    with pytest.raises(job_store.StoreLostError):
        store.is_first() if says_so else store.post(plain("a word"))
    assert virtual_s[0] == 0


@pytest.mark.parametrize(
    ("name", "endpoint", "says"),
    [
        ("nobodys", "here:1", "torch could not load the rendezvous backend 'nobodys'.*c10d, etcd"),
        ("c10d", "here:x", "backend 'c10d' gives no store .*'here:x'.*--rdzv-endpoint"),
    ],
)
def test_a_backend_that_gives_no_store_is_one_error(name: str, endpoint: str, says: str) -> None:
    """With its own words for it."""
    from holdfast.job.store.other_backends import BackendError

    with pytest.raises(BackendError, match=says):
        other(name, endpoint)


FAKE_ETCD = """
class EtcdException(Exception):
    payload = {"index": 0}
class EtcdKeyNotFound(EtcdException): pass
class EtcdAlreadyExist(EtcdException): pass
class EtcdCompareFailed(EtcdException): pass
class EtcdWatchTimedOut(EtcdException): pass
class EtcdEventIndexCleared(EtcdException): pass
KEYS = {}
class EtcdResult:
    def __init__(self, key, value):
        self.key, self.value, self.etcd_index = key, value, 0
class Client:
    version = "2.3"
    def __init__(self, *args, **kwargs): pass
    def set(self, key, value): KEYS[key] = value
    def get(self, key):
        if key not in KEYS:
            raise EtcdKeyNotFound
        return EtcdResult(key, KEYS[key])
    read = get
    def write(self, key, value, prevExist):
        if key in KEYS:
            raise EtcdAlreadyExist
        KEYS[key] = value
        return EtcdResult(key, value)
    def test_and_set(self, key, value, prev_value):
        assert KEYS[key] == prev_value
        KEYS[key] = value
        return EtcdResult(key, value)
    def watch(self, key, **kwargs): raise EtcdWatchTimedOut
    def delete(self, key): del KEYS[key]
"""
"""As much of python-etcd's client as is used; tests/real/test_etcd.py asks a real etcd."""

OVER_ETCD = """
import etcd
from holdfast.job.store.job_store import JobStore, Mailbox
from holdfast.job.store.store_address import OtherBackend
from holdfast.job.store.other_backends import open_backend
connect = open_backend(OtherBackend("etcd", "host:2379", 1, 2, None, {}), "j1")
a, b = JobStore(connect, "job"), JobStore(connect, "job")
assert [a.is_first(), b.is_first()] == [True, False]
b.post(lambda _: b"a word")
before = len(etcd.KEYS)
assert Mailbox(a, lambda _, body: body).take() == b"a word"
assert len(etcd.KEYS) == before - 1
a.publish(1, lambda _: b"a decision")
assert b.follow(1, lambda _, body: body) == b"a decision"
assert all(key.startswith("/torch/elastic/store/j1/") for key in etcd.KEYS), etcd.KEYS
"""


def test_mailbox_and_log_work_over_an_etcd_store(tmp_path: Path) -> None:
    """Below a folder of the job's own, and messages that were taken are deleted."""
    (tmp_path / "urllib3").mkdir()
    (tmp_path / "urllib3" / "__init__.py").touch()
    (tmp_path / "urllib3" / "exceptions.py").write_text(
        "class HTTPError(Exception): pass\nclass TimeoutError(HTTPError): pass\n"
    )
    (tmp_path / "etcd.py").write_text(FAKE_ETCD)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", OVER_ETCD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
