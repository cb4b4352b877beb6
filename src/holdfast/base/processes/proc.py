"""Facts about processes from /proc, and a hold on one that a recycled pid cannot deceive.

Nothing here reads a file that lies in another process's memory (``environ``, ``cmdline``,
``maps``): the kernel makes a reader wait as long as that process is stuck. ``file_read.py`` does,
in a process of its own. A process that ends while it is looked at is ``None`` or absent, never an
exception.
"""

from __future__ import annotations

import os

from holdfast.base import clock, wait_for
from holdfast.base.processes import system_calls
from holdfast.base.processes.rank_boot import SIGKILL
from holdfast.base.pure.ownership import Facts
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from holdfast.base.pure.ownership import Identity

MARKER = "HOLDFAST_MARKER"
"""Environment variable that every process of a rank inherits: ``<job>.<cycle>.<local rank>``."""
ROOT = "/proc"
_SHM_MANAGER = "torch_shm_manag"
"""The kernel keeps 15 bytes of a name."""
_PF_EXITING, _PF_FORKNOEXEC = 0x4, 0x40
_FIRST_LOOK_S, _LOOK_S = 0.001, 0.05
"""Between looks at a process without a descriptor, at first and at last."""


def read_whole(path: str) -> bytes | None:
    """A file of ``/proc``; ``None`` where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


class Stat(Facts):
    """A process's line in the kernel's table.

    Attributes:
        name: Of its program, 15 bytes at most.
        state: Letter of ps(1), of its main thread.
        flags: The kernel's ``PF_*``.
    """

    __slots__ = ("flags", "name", "state")

    def __init__(self, line: bytes) -> None:
        # The name in parentheses may hold spaces and parentheses itself.
        end = line.rindex(b")")
        fields = line[end + 2 :].split(None, 20)
        super().__init__(int(fields[1]), int(fields[3]), int(fields[19]))
        self.name = line[line.index(b"(") + 1 : end].decode(errors="replace")
        self.state = fields[0].decode()
        self.flags = int(fields[6])


def stat(pid: int, root: str = ROOT) -> Stat | None:
    """``None``: there is no such process."""
    line = read_whole(f"{root}/{pid}/stat")
    return Stat(line) if line else None


def why_unusable(root: str = ROOT) -> str | None:
    """Why processes cannot be looked at here; None: they can.

    A ``/proc`` of another pid namespace may have another process of this number.
    """
    own = os.getpid()
    if not os.path.exists(f"{root}/{own}/stat"):
        return (
            f"{root} does not show this process (pid {own}): it is not mounted, or it is that of "
            "another pid namespace. holdfast finds, watches and ends processes by it: mount it "
            "(mount -t proc proc /proc), as container runtimes do"
        )
    return None


def start_ticks(pid: int) -> int | None:
    """When ``pid`` was started, in clock ticks since boot: tells a recycled pid apart."""
    found = stat(pid)
    return None if found is None else found.started


def is_fork(pid: int, root: str = ROOT) -> bool:
    """Whether it still runs its parent's program; true where the kernel does not say."""
    found = stat(pid, root)
    return found is None or found.flags == 0 or bool(found.flags & _PF_FORKNOEXEC)


def is_ending(pid: int) -> bool:
    """It has exited, or is on its way out of the kernel; a signal changes nothing."""
    found = stat(pid)
    return found is None or bool(found.flags & _PF_EXITING)


def table(root: str = ROOT) -> dict[int, Facts]:
    """All processes that can be seen; 20 microseconds for each."""
    found: dict[int, Facts] = {}
    for name in os.listdir(root):
        if name.isdigit() and (line := read_whole(f"{root}/{name}/stat")):
            found[int(name)] = Stat(line)
    return found


def subtree(top: int, leave: Collection[int] = ()) -> dict[int, Facts]:
    """``top`` and all processes below it, without those in ``leave`` and all below them."""
    found: dict[int, Facts] = {}
    pending = [top]
    while pending:
        pid = pending.pop()
        if pid in leave or (seen := stat(pid)) is None:
            continue
        # One that was listed by its parent may have ended since, and its pid be a stranger's.
        if pid == top or seen.parent in found:
            found[pid] = seen
            pending += children(pid)
    return found


def threads(pid: int, root: str) -> list[str]:
    """Numbers of its threads; none where there is no such process."""
    try:
        return os.listdir(f"{root}/{pid}/task")
    except OSError:
        return []


def children(pid: int, root: str = ROOT) -> list[int]:
    """Children of all threads of ``pid``, zombies included."""
    found: list[int] = []
    for thread in threads(pid, root):  # one that has ended since has none; the others' count
        found += map(int, (read_whole(f"{root}/{pid}/task/{thread}/children") or b"").split())
    return found


def identity(pid: int) -> Identity | None:
    """Pid and start; ``None`` where there is no such process."""
    found = stat(pid)
    return None if found is None else (pid, found.started)


def is_alive(process: Identity) -> bool:
    """It exists and is no zombie: process 1 of many containers never reaps any."""
    found = stat(process[0])
    return found is not None and found.started == process[1] and found.state not in ("Z", "X")


def lineage(pid: int, above: int, root: str = ROOT) -> list[int]:
    """``pid`` and its ancestors up to a child of ``above``; empty: ``above`` is not one of them."""
    found = [pid]
    while (seen := stat(found[-1], root)) is not None and seen.parent not in (0, *found):
        if seen.parent == above:
            return found
        found.append(seen.parent)
    return []


def program(pid: int, root: str = ROOT) -> str:
    """Name of the file that it executes; "" where that is not known."""
    try:
        return os.path.basename(os.readlink(f"{root}/{pid}/exe"))
    except OSError:
        return ""


def status(pid: int | str, thread_id: int | None = None) -> dict[bytes, bytes]:
    """Fields of the status of a process, or one of its threads; none where there is no such one."""
    path = f"{ROOT}/{pid}/task/{thread_id}/status" if thread_id else f"{ROOT}/{pid}/status"
    lines = (read_whole(path) or b"").splitlines()
    return dict(line.split(b":\t", 1) for line in lines if b":\t" in line)


def is_shm_manager(pid: int) -> bool:
    """It is torch's manager of shared memory (of the strategy ``file_system``).

    It has the memory of processes that died removed, ends 2 s after the last process that uses it,
    and leaks that memory, until the host is started anew, if it is killed before.
    """
    found = stat(pid)
    return found is not None and found.name == _SHM_MANAGER


def has_open(pid: int, path: str) -> bool | None:
    """Whether process ``pid`` has the file at ``path`` open; None: it does not let itself be read.

    ``path`` may be itself that of a descriptor in /proc.
    """
    folder, file = f"{ROOT}/{pid}/fd", os.path.realpath(path)
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return None
    for descriptor in descriptors:
        try:
            if os.readlink(f"{folder}/{descriptor}") == file:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def owner(pid: int) -> int:
    """Its effective user's number; -1 where there is no such process."""
    users = status(pid).get(b"Uid")
    return -1 if users is None else int(users.split()[1])


def cgroups(pid: int) -> dict[str, str]:
    """Path of its cgroup in each hierarchy, by the hierarchy's controllers ("" is version 2)."""
    lines = os.fsdecode(read_whole(f"{ROOT}/{pid}/cgroup") or b"").splitlines()
    return {fields[1]: fields[2] for line in lines if len(fields := line.split(":", 2)) == 3}


def login(pid: int) -> str:
    """Number of its audit session: sshd, atd and cron begin one for each login or job."""
    return (read_whole(f"{ROOT}/{pid}/sessionid") or b"").decode(errors="replace").strip()


def namespace(kind: str) -> int:
    """Inode of this process's namespace of a kind (``pid``, ``time``); 0: the kernel has none."""
    try:
        return os.stat(f"{ROOT}/self/ns/{kind}").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """32 hexadecimal digits that are another's after each boot; "" where they cannot be read."""
    text = (read_whole(f"{ROOT}/sys/kernel/random/boot_id") or b"").decode(errors="replace")
    return text.strip().replace("-", "")


class ProcessState(Value):
    """The kernel's facts about one process, or one of its threads.

    Attributes:
        state: Letter of ps(1): R running, S sleeping, D in the kernel, T stopped, Z ended, ...
        wchan: Kernel function the main thread sleeps in; "" if unknown or running.
        blocked, caught, pending, ignored: Sets of signals, bit ``n - 1`` for signal ``n``; pending
            ones were sent and are not delivered yet.
    """

    state: str
    wchan: str
    threads: int
    rss_kib: int
    blocked: int
    caught: int
    pending: int
    ignored: int

    def blocks(self, signum: int) -> bool:
        """The main thread blocks ``signum`` now, as it does inside the handler of ``signum``."""
        return bool(self.blocked >> (signum - 1) & 1)

    def ignores_or_blocks(self, signum: int) -> bool:
        """Sending ``signum`` to the main thread has no effect now."""
        return bool((self.blocked | self.ignored) >> (signum - 1) & 1)

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
        """The form in a report."""
        return {
            "state": self.state,
            "wchan": self.wchan,
            "threads": self.threads,
            "rss_kib": self.rss_kib,
        }


def process_state(pid: int, thread_id: int | None = None) -> ProcessState | None:
    """``None``: there is no such process."""
    fields = status(pid, thread_id)
    if not fields:
        return None
    wchan = (read_whole(f"/proc/{pid}/wchan") or b"").decode(errors="replace")
    return ProcessState(
        fields[b"State"][:1].decode(),
        "" if wchan == "0" else wchan,
        int(fields[b"Threads"]),
        int(fields.get(b"VmRSS", b"0").split()[0]),  # a zombie has none
        int(fields[b"SigBlk"], 16),
        int(fields[b"SigCgt"], 16),
        int(fields[b"ShdPnd"], 16) | int(fields[b"SigPnd"], 16),
        int(fields[b"SigIgn"], 16),
    )


class Process:
    """A hold on one process, that a recycled pid cannot deceive.

    Readable (``fileno``) when it has ended, where the kernel has pidfds (Linux 5.3). Elsewhere
    ``fileno`` is -1, its end is looked for (:func:`await_any`), and the start time is compared
    before each signal.
    """

    __slots__ = ("_fd", "pid", "start_ticks")

    def __init__(self, pid: int) -> None:
        """Take hold of ``pid``.

        Raises:
            ProcessLookupError: There is no such process.
        """
        self.pid = pid
        try:
            self._fd = system_calls.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            self._fd = -1
        ticks = start_ticks(pid)
        if ticks is None:
            self.close()
            raise ProcessLookupError(f"no process {pid}")
        self.start_ticks = ticks

    def fileno(self) -> int:
        """The pidfd, or -1."""
        return self._fd

    def has_ended(self) -> bool:
        """All its threads have; of one whose main thread alone has, /proc shows a zombie, too."""
        if self._fd >= 0:
            return wait_for.readable(self._fd, 0.0)
        return not self.is_alive()

    def is_alive(self) -> bool:
        """See :func:`is_alive`."""
        return is_alive((self.pid, self.start_ticks))

    def kill(self) -> bool:
        """SIGKILL it; see :meth:`send`."""
        return self.send(SIGKILL)

    def send(self, signum: int) -> bool:
        """Send a signal to this process alone; ``False``: it is gone, or that is not permitted."""
        if self._fd >= 0:
            try:
                system_calls.pidfd_send_signal(self._fd, signum)
            except ProcessLookupError:
                return False
            except OSError:  # another user's, or a sandbox refuses this call: the next one tells
                pass
            else:
                return True
        if start_ticks(self.pid) != self.start_ticks:
            return False
        try:
            os.kill(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def send_to_thread(self, thread_id: int, signum: int) -> bool:
        """Send a signal to one of its threads; ``False`` where that cannot be done."""
        if start_ticks(self.pid) != self.start_ticks:
            return False
        try:
            system_calls.signal_thread(self.pid, thread_id, signum)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def hold(process: Identity) -> Process | None:
    """A hold on this process; ``None``: it has ended, or its pid is another one's by now."""
    try:
        held = Process(process[0])
    except ProcessLookupError:
        return None
    if held.start_ticks == process[1] and not held.has_ended():
        return held
    held.close()
    return None


def await_any(processes: Iterable[Process], timeout_s: float | None) -> bool:
    """Until one of them has ended; False: none within ``timeout_s``; None: no bound.

    One without a descriptor is looked at after 1, 2, 4 ... ms, at last every 50.
    """
    held = list(processes)
    blind = [process for process in held if process.fileno() < 0]
    descriptors = [process.fileno() for process in held if process.fileno() >= 0]
    if not blind:
        return wait_for.any_readable(descriptors, timeout_s)
    give_up_at = None if timeout_s is None else clock.monotonic() + timeout_s
    pause_s = _FIRST_LOOK_S
    while True:
        if any(not process.is_alive() for process in blind):
            return True
        left_s = pause_s if give_up_at is None else give_up_at - clock.monotonic()
        if wait_for.any_readable(descriptors, min(pause_s, left_s)):
            return True
        if left_s <= 0:
            return False
        pause_s = min(2 * pause_s, _LOOK_S)
