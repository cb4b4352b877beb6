"""Facts about processes from /proc, and the end of everything that carries a marker.

Lean: imported by the rank monitor. A process that ends while it is looked at is ``None`` or absent,
never an exception.
"""

from __future__ import annotations

import os
import signal

from holdfast.host import clock, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKER = "HOLDFAST_MARKER"
"""Environment variable that every process of a rank inherits; see :func:`find_marked`."""
_SIGKILL = 9
_SWEEP_PASSES = 2
_FORK_S = 0.05
"""When to look for what a process has forked between being listed and being killed."""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


class Stat:
    """What the kernel says about a process without a look into its memory.

    Attributes:
        name: Of its program, 15 bytes at most.
        state: Letter of ps(1), of its main thread.
        parent: Its parent's pid.
        start_ticks: When it was started, in clock ticks since boot: tells a recycled pid apart.
    """

    __slots__ = ("name", "parent", "start_ticks", "state")

    def __init__(self, line: bytes) -> None:
        # The name in parentheses may hold spaces and parentheses itself.
        end = line.rindex(b")")
        fields = line[end + 2 :].split()
        self.name = line[line.index(b"(") + 1 : end].decode(errors="replace")
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.start_ticks = int(fields[19])


def stat(pid: int) -> Stat | None:
    """Of a process; ``None`` where there is no such process."""
    line = _read(f"/proc/{pid}/stat")
    return Stat(line) if line else None


def start_ticks(pid: int) -> int | None:
    """When ``pid`` was started, in clock ticks since boot: tells a recycled pid apart."""
    found = stat(pid)
    return None if found is None else found.start_ticks


def command_line(pid: int) -> list[str]:
    """Words a process was started with; empty where it has none, or they cannot be had at once.

    They lie in its memory, and the kernel may make us wait for that as long as one of its threads
    is stuck (state D) in a driver or file system: then nothing is read.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        line = _read(f"/proc/{pid}/task/{thread}/stat")
        if line and Stat(line).state == "D":
            return []
    words = (_read(f"/proc/{pid}/cmdline") or b"").split(b"\0")
    return [word.decode(errors="replace") for word in words[:-1]]


def mapped_files(pid: int) -> list[str]:
    """Files in the memory of ``pid``, each as often as it is mapped; none if it can't be read."""
    lines = (_read(f"/proc/{pid}/maps") or b"").decode(errors="replace").splitlines()
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]


def pid_namespace() -> int:
    """Inode of our pid namespace: pids mean something only within one."""
    return os.stat("/proc/self/ns/pid").st_ino


class ProcessState:
    """What the kernel says about one process.

    Attributes:
        state: Letter of ps(1): R running, S sleeping, D in the kernel, T stopped, Z ended, ...
        wchan: Kernel function the main thread sleeps in; "" if unknown or running.
        threads: How many.
        rss_kib: Resident memory.
        blocked: Signals the main thread blocks, bit ``n - 1`` for signal ``n``.
        caught: Signals that have a handler, same form.
        pending: Signals that were sent to the process and are not delivered yet, same form.
    """

    __slots__ = ("blocked", "caught", "pending", "rss_kib", "state", "threads", "wchan")

    def __init__(
        self,
        state: str,
        wchan: str,
        threads: int,
        rss_kib: int,
        blocked: int,
        caught: int,
        pending: int,
    ) -> None:
        self.state = state
        self.wchan = wchan
        self.threads = threads
        self.rss_kib = rss_kib
        self.blocked = blocked
        self.caught = caught
        self.pending = pending

    def blocks(self, signum: int) -> bool:
        """The main thread blocks ``signum`` now, as it does inside the handler of ``signum``."""
        return bool(self.blocked >> (signum - 1) & 1)

    def awaits(self, signum: int) -> bool:
        """``signum`` was sent and is not delivered: blocked, stopped, or it has not run since."""
        return bool(self.pending >> (signum - 1) & 1)

    def catches(self, signum: int) -> bool:
        """``signum`` has a handler, so that sending it does not end the process."""
        return bool(self.caught >> (signum - 1) & 1)

    @property
    def is_stopped(self) -> bool:
        """Stopped by SIGSTOP or a tracer: it cannot run a handler before SIGCONT."""
        return self.state in ("T", "t")

    def to_json(self) -> dict[str, Any]:
        """What a report shows."""
        return {
            "state": self.state,
            "wchan": self.wchan,
            "threads": self.threads,
            "rss_kib": self.rss_kib,
        }


def process_state(pid: int) -> ProcessState | None:
    """State of ``pid``; ``None`` where there is no such process."""
    status = _read(f"/proc/{pid}/status")
    if not status:
        return None
    fields = dict(line.split(b":\t", 1) for line in status.splitlines() if b":\t" in line)
    wchan = (_read(f"/proc/{pid}/wchan") or b"").decode(errors="replace")
    return ProcessState(
        fields[b"State"][:1].decode(),
        "" if wchan == "0" else wchan,
        int(fields[b"Threads"]),
        int(fields.get(b"VmRSS", b"0").split()[0]),  # a zombie has none
        int(fields[b"SigBlk"], 16),
        int(fields[b"SigCgt"], 16),
        int(fields[b"ShdPnd"], 16),
    )


class Process:
    """A hold on one process, that a recycled pid cannot deceive.

    Readable (``fileno``) when it has ended, where the kernel has pidfds (Linux 5.3); elsewhere
    ``fileno`` is -1 and the start time is compared before each signal.
    """

    __slots__ = ("_fd", "_ticks", "pid")

    def __init__(self, pid: int) -> None:
        """Take hold of ``pid``.

        Raises:
            ProcessLookupError: There is no such process.
        """
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            self._fd = -1
        ticks = start_ticks(pid)
        if ticks is None:
            self.close()
            raise ProcessLookupError(f"no process {pid}")
        self._ticks = ticks

    def fileno(self) -> int:
        """The pidfd, or -1."""
        return self._fd

    @property
    def start_ticks(self) -> int:
        """When it was started; see :func:`start_ticks`."""
        return self._ticks

    def is_alive(self) -> bool:
        """It exists and is no zombie."""
        if start_ticks(self.pid) != self._ticks:
            return False
        state = process_state(self.pid)
        return state is not None and state.state not in ("Z", "X")

    def send(self, signum: int) -> bool:
        """Send a signal to this process alone; ``False`` where it is gone or not ours."""
        try:
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, signum)
            elif start_ticks(self.pid) == self._ticks:
                os.kill(self.pid, signum)
            else:
                return False
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_marked(pid: int, needle: bytes) -> bool:
    return needle in b"\0" + (_read(f"/proc/{pid}/environ") or b"")


def _needle(prefix: str) -> bytes:
    return b"\0" + f"{MARKER}={prefix}".encode()


def find_marked(prefix: str) -> list[int]:
    """Processes whose environment says ``HOLDFAST_MARKER=<prefix>...``, without ourselves.

    Re-parented, re-sessioned and forked ones included; only a process that cleared its environment
    escapes. Zombies have no environment any more. 5 ms for 400 processes.
    """
    needle = _needle(prefix)
    own = os.getpid()
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if pid != own and _is_marked(pid, needle)]


def markers() -> set[str]:
    """Every marker that some process of this host carries, as far as we may look."""
    needle = _needle("")
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            _, _, rest = (b"\0" + (_read(f"/proc/{name}/environ") or b"")).partition(needle)
            if rest:
                found.add(rest.partition(b"\0")[0].decode(errors="replace"))
    return found


def sweep(prefix: str, bound_s: float = 10.0) -> int:
    """SIGKILL every marked process until two passes in a row find none.

    Two, because a process may fork between being listed and being killed.

    Args:
        prefix: Of the marker; never empty.
        bound_s: Give up after this long: a process in state D does not die of SIGKILL.

    Returns:
        How many were sent SIGKILL; one that refuses it (another user's) is waited for, no more.
    """
    if not prefix:
        raise ValueError("an empty prefix would end every rank on this host")
    give_up_at = clock.monotonic() + bound_s
    held: dict[int, Process] = {}
    killed = clean_passes = 0
    try:
        while clean_passes < _SWEEP_PASSES:
            found = find_marked(prefix)
            clean_passes = 0 if found else clean_passes + 1
            fresh = _hold(found, held, _needle(prefix))
            killed += sum(process.send(_SIGKILL) for process in fresh)
            if not found:
                continue
            left_s = give_up_at - clock.monotonic()
            if left_s <= 0:
                break
            _await_one(held, min(left_s, _FORK_S) if fresh else left_s)
    finally:
        for process in held.values():
            process.close()
    return killed


def _hold(pids: list[int], held: dict[int, Process], needle: bytes) -> list[Process]:
    """Take hold of those that are new among ``pids``, and let go of all others."""
    for pid in [pid for pid in held if pid not in pids]:
        held.pop(pid).close()
    fresh = []
    for pid in pids:
        if pid in held and held[pid].start_ticks == start_ticks(pid):
            continue
        if pid in held:  # somebody else has its pid now
            held.pop(pid).close()
        try:
            process = Process(pid)
        except ProcessLookupError:
            continue
        # Marked before we took hold of it; is it still the same one?
        if _is_marked(pid, needle):
            held[pid] = process
            fresh.append(process)
        else:
            process.close()
    return fresh


def _await_one(held: dict[int, Process], timeout_s: float) -> None:
    """Until one of them has ended: who is killed, or refuses to be, is not asked twice."""
    if not held:
        return
    descriptors = [process.fileno() for process in held.values() if process.fileno() >= 0]
    blind = len(descriptors) < len(held)
    wait_for.any_readable(descriptors, min(timeout_s, _FORK_S) if blind else timeout_s)
