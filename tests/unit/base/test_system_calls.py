"""Calls that the interpreter, the kernel or a sandbox lacks."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import child, proc, system_calls
from holdfast.tools.doctor import call_sources
from tests.unit.base.test_proc import BOUND_S

LACKED = {"posix_spawn(setsid)", "pidfd_open", "pidfd_send_signal", "memfd_create"}
WHAT_IT_IS = """
cut -d " " -f 6 /proc/$$/stat
echo "$#" "$1" "$A"
cat; echo; cat <&3; echo
grep -E "Sig(Blk|Ign)" /proc/self/status
"""


def without_setsid(*args: Any, setsid: bool = False, **kwargs: Any) -> int:
    """As an interpreter says it that was built with headers of glibc 2.17."""
    if setsid:
        raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
    return _posix_spawn(*args, **kwargs)


_posix_spawn: Callable[..., int] = os.posix_spawn


def not_implemented(*_: object) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.fixture
def old_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the names."""
    for module, name in (
        (os, "pidfd_open"),
        (os, "memfd_create"),
        (signal, "pidfd_send_signal"),
    ):
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(os, "posix_spawn", without_setsid)


@pytest.fixture
def no_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 5.3."""
    monkeypatch.setattr(os, "pidfd_open", not_implemented, raising=False)
    monkeypatch.setattr(signal, "pidfd_send_signal", not_implemented, raising=False)


def sleeper() -> int:
    return child.spawn(["/bin/sleep", "1000"], os.environ, {})


def set_way(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how != "interpreter":
        monkeypatch.setattr(os, "posix_spawn", without_setsid)
    if how == "helper":
        monkeypatch.setattr(system_calls, "spawn_by_c_library", without_setsid_at_all)


def signals(kind: str, status: list[str]) -> int:
    """A set of the signals 1 to 31, by the lines of ``/proc/PID/status``."""
    line = next(line for line in status if line.startswith(kind))
    return int(line.split()[1], 16) & 0x7FFFFFFF


@pytest.mark.parametrize("how", ["interpreter", "C library", "helper"])
def test_a_process_begins_a_session_however_it_is_started(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same arguments, environment, descriptors and signals."""
    set_way(how, monkeypatch)
    (tmp_path / "in").write_text("from in")
    (tmp_path / "third").write_text("third")
    third = os.open(tmp_path / "third", os.O_RDONLY)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(tmp_path / "in"), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(tmp_path / "out"), os.O_WRONLY | os.O_CREAT, 0o600),
        (os.POSIX_SPAWN_DUP2, third, 3),
    ]
    command = ["/bin/sh", "-c", WHAT_IT_IS, "sh", "a b", ""]
    env = {"A": "1 ü", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    defaults = [signal.SIGUSR1, signal.SIGPIPE, signal.SIGXFSZ]
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        pid = system_calls.spawn_in_session("/bin/sh", command, env, actions, defaults)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGUSR1, before)
        os.close(third)

    assert os.waitpid(pid, 0)[1] == 0
    *seen, blocked, ignored = (tmp_path / "out").read_text().splitlines()
    assert seen == [str(pid), "2 a b 1 ü", "from in", "third"]
    ours = signals("SigIgn", Path("/proc/self/status").read_text().splitlines())  # of nohup, say
    assert not signals("SigBlk", [blocked])
    assert not signals("SigIgn", [ignored]) & ~ours


@pytest.mark.parametrize("how", ["interpreter", "C library", "helper"])
def test_a_process_can_be_started_with_signals_blocked(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait until it is ready for them."""
    set_way(how, monkeypatch)
    status = (tmp_path / "status").open("wb")
    with status:
        pid = system_calls.spawn_in_session(
            "/bin/cat",
            ["cat", "/proc/self/status"],
            {},
            [(os.POSIX_SPAWN_DUP2, status.fileno(), 1)],
            [],
            [signal.SIGHUP, signal.SIGTERM],
        )
    assert os.waitpid(pid, 0)[1] == 0

    words = (tmp_path / "status").read_text().split()
    assert int(words[words.index("SigBlk:") + 1], 16) == 1 << 0 | 1 << 14


def without_setsid_at_all(*_: object) -> int:
    raise NotImplementedError


@pytest.mark.usefixtures("old_interpreter")
def test_a_program_that_cannot_be_started_is_an_error_through_the_c_library_too() -> None:
    with pytest.raises(FileNotFoundError):
        child.spawn(["/no/such/program"], {}, {})


@pytest.mark.usefixtures("old_interpreter")
def test_what_the_interpreter_lacks_is_called_through_the_c_library() -> None:
    """A hold on a process, a signal through it, and a file in memory."""
    if call_sources.ABSENT in call_sources.survey().values():
        pytest.skip("this kernel lacks one of them, too")
    assert call_sources.survey() == dict.fromkeys(LACKED, call_sources.C_LIBRARY)
    pid = sleeper()
    held = proc.Process(pid)
    assert held.fileno() >= 0
    assert held.send(signal.SIGKILL)
    assert proc.await_any([held], BOUND_S)
    os.waitpid(pid, 0)
    assert not held.send(signal.SIGKILL)
    held.close()
    with pytest.raises(ProcessLookupError):
        proc.Process(pid)
    with os.fdopen(system_calls.memory_file("test"), "w+b") as file:
        assert not os.get_inheritable(file.fileno())
        file.write(b"text")
        file.flush()
        assert Path(f"/proc/self/fd/{file.fileno()}").read_bytes() == b"text"


@pytest.mark.parametrize("tmpfs", ["/dev/shm", "/no/such/folder"])
def test_without_memory_files_a_file_without_a_name_is_used(
    tmpfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can open it, and nothing of it is left."""
    monkeypatch.setattr(os, "memfd_create", not_implemented, raising=False)
    monkeypatch.setattr(system_calls, "_TMPFS", tmpfs)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with os.fdopen(system_calls.memory_file("test"), "w+b") as file:
        assert not os.get_inheritable(file.fileno())
        file.write(b"text")
        file.flush()
        assert Path(f"/proc/self/fd/{file.fileno()}").read_bytes() == b"text"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_pidfds")
def test_without_pidfds_the_end_of_a_process_is_looked_for() -> None:
    """Of one that nobody has reaped, too."""
    pid = sleeper()
    held = proc.Process(pid)
    assert (held.fileno(), held.has_ended()) == (-1, False)
    assert not proc.await_any([held], 0.0)
    assert held.send(signal.SIGKILL)
    assert proc.await_any([held], BOUND_S)
    assert held.has_ended()
    os.waitpid(pid, 0)
    assert call_sources.survey()["pidfd_open"] == call_sources.ABSENT


@pytest.mark.usefixtures("no_pidfds")
@pytest.mark.parametrize("is_reaped", [True, False])
def test_without_pidfds_the_end_of_a_child_can_be_waited_for(is_reaped: bool) -> None:
    """Whoever reaps it, and however many forks of this process hold the descriptor."""
    pid = sleeper()
    ended = child.end_descriptor(pid)
    copy = os.dup(ended)
    assert not select.select([ended], [], [], 0)[0]
    os.kill(pid, signal.SIGKILL)
    if is_reaped:
        os.waitpid(pid, 0)
    assert select.select([ended], [], [], BOUND_S)[0]
    if not is_reaped:
        os.waitpid(pid, 0)
    os.close(copy)
    os.close(ended)


def test_a_sandbox_that_refuses_only_signals_through_pidfds_is_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked like a process of another user, which is left alone."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refused, raising=False)
    pid = sleeper()
    held = proc.Process(pid)
    held.start_ticks -= 1
    assert not held.send(signal.SIGKILL), "somebody else's by now, as far as can be known"
    held.start_ticks += 1
    assert held.send(signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    held.close()
    assert call_sources.survey()["pidfd_send_signal"] == call_sources.ABSENT
