"""Processes without the second that importing torch takes: forks of one that has done it.

Ranks that a test starts by hand, and launchers of several nodes. A fork is what an interpreter is
at the first line of its script, but for its command line and its parent, and it has no compiler
(``light_torch.py``). The process that forks reports the ends of its children, as only a parent
can.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

_READ_BY_LIBRARIES = ("LD_", "PYTHON", "TORCH", "OMP_", "MKL_")
"""Variables that are read while a process starts or imports."""


class Fork:
    """One process; as much of :class:`subprocess.Popen` as tests use."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._forks.take_ends(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"fork (pid {self.pid})", timeout or 0.0)
            self._forks.take_ends(left)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # reaped, and not yet reported
                os.kill(self.pid, signum)


class Forks:
    """The process that has imported torch, started with its first child, and its children."""

    def __init__(self) -> None:
        self._executable = sys.executable
        self._control, self._theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._forked: list[Fork] = []
        self._alive: dict[int, Fork] = {}

    def _begin(self) -> None:
        with self._theirs as theirs:
            self._process = subprocess.Popen(
                [self._executable, "-m", __name__, str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether these variables may be set after torch was imported, and this host has pidfds."""
        is_another = self._executable != sys.executable
        if is_another or any(name.startswith(_READ_BY_LIBRARIES) for name in env):
            return False
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return True

    def start(self, script: Path, env: Mapping[str, str], output: Path) -> Fork:
        """As ``python script`` with stdin from /dev/null, and all that it says in ``output``."""
        return self._fork(script=str(script), argv=[], env=env, out=str(output), err=str(output))

    def start_module(
        self, module: str, words: Sequence[str], env: Mapping[str, str], out: Path, err: Path
    ) -> Fork:
        """As ``python -m module words`` with stdin from /dev/null, in the folder of ``out``."""
        return self._fork(module=module, argv=words, env=env, out=str(out), err=str(err))

    def _fork(self, **order: object) -> Fork:
        if self._process is None:
            self._begin()
        self._control.sendall(json.dumps(order).encode() + b"\n")
        while not self._forked:
            self._receive()
        return self._forked.pop()

    def take_ends(self, wait_s: float | None) -> None:
        """Note which have ended; wait so many seconds for one that does."""
        if select.select([self._control], [], [], wait_s)[0]:
            self._receive()

    def _receive(self) -> None:
        data = self._control.recv(1 << 16)
        assert data, "the process that forks has ended"
        *lines, self._unread = (self._unread + data).split(b"\n")
        for word in map(json.loads, lines):
            if "forked" in word:
                fork = self._alive[word["forked"]] = Fork(self, word["forked"])
                self._forked.append(fork)
            else:
                self._alive.pop(word["ended"]).returncode = word["with"]

    def close(self) -> None:
        self._control.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


# ---------------------------------------------------------------- the process that forks
def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork as ordered; returns the order in the child only."""
    orders = control.makefile("r")
    children: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)

    def tell(**word: int) -> None:
        control.sendall(json.dumps(word).encode() + b"\n")

    while True:
        for ready, _ in poll.poll():
            if ready in children:
                _, status = os.waitpid(children[ready], 0)
                tell(ended=children.pop(ready), **{"with": os.waitstatus_to_exitcode(status)})
                poll.unregister(ready)
                os.close(ready)
                continue
            line = orders.readline()
            if not line:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for pidfd in children:
                    os.close(pidfd)
                return json.loads(line)  # type: ignore[no-any-return]
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            tell(forked=pid)


def _become(order: dict[str, Any]) -> None:
    for number, path in ((1, order["out"]), (2, order["err"])):
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.dup2(output, number)
        os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    random.seed()
    sys.modules["numpy"].random.seed()
    if "module" in order:
        sys.path[0] = folder = str(Path(order["out"]).parent)
        os.chdir(folder)
        sys.argv = [order["module"], *order["argv"]]
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        return
    sys.argv = [order["script"]]
    script = Path(order["script"])
    sys.path[0] = str(script.parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), script, "exec"), module.__dict__)


def _main() -> None:
    import gc

    gc.disable()
    import numpy.random  # noqa: F401
    import torch.distributed  # noqa: F401

    import holdfast.inprocess
    import holdfast.node.agent
    import holdfast.options.arguments
    from tests.real import light_torch  # noqa: F401

    assert holdfast.inprocess.Wrapper  # loaded when it is used
    gc.freeze()  # what is here by now is no garbage of a rank's
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        order = _serve(control)
    _become(order)


if __name__ == "__main__":
    _main()
