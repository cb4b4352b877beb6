"""Run real launchers on real scripts, and look at what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.base.processes import proc
from holdfast.events.pure.schema import event_of, fields_of
from holdfast.events.run.event_lines import parse
from tests.real.forked_ranks import Fork, Forks
from tests.real.scripts import write_script
from tests.waiting import BOUND_S, until


def marked(prefix: str) -> list[int]:
    """Processes whose environment says ``HOLDFAST_MARKER=<prefix>...``, without ourselves."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = b"\0" + (folder / "environ").read_bytes()
            if f"\0{proc.MARKER}={prefix}".encode() in environ and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


class Job:
    """One launcher and its ranks."""

    process: subprocess.Popen[bytes] | Fork

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._out = folder / "console.out"
        self._err = folder / "console.err"
        self._out.touch()
        self._err.touch()

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def fork(self, forks: Forks, module: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        """The same, of a process that has imported torch."""
        self.process = forks.start_module(module, words, env, self._out, self._err)

    @property
    def stdout(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Exit code of the launcher."""
        try:
            return self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the launcher still runs after {bound_s:g} s\n{self.stdout}\n{self.stderr}"
            ) from None

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    @property
    def run_dir(self) -> Path:
        """The run directory under ``--log-dir logs``."""
        return until(
            lambda: next(iter(sorted((self.folder / "logs").glob("*_*"))), None), "a run directory"
        )

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What launcher and monitors wrote down, in order."""
        files = self.run_dir.glob("events-launcher.jsonl")  # it may not be there yet
        lines = [line for file in files for line in file.read_bytes().splitlines()]
        found = [event for line in lines if (event := parse(line)) is not None]
        for event in found:  # a reader has all that the launcher has written
            typed = event_of(event)
            assert typed is not None, event
            assert fields_of(typed) == event
        return [event for event in found if kind is None or event["kind"] == kind]

    def hung_ranks(self) -> list[dict[str, Any]]:
        """What its incidents say of the ranks that were overdue."""
        files = sorted((self.run_dir / "incidents").glob("*/rank*.json"))
        records = [json.loads(file.read_text()) for file in files]
        return [record for record in records if "clock" in record]

    def culprit(self) -> dict[str, Any]:
        """What its one incident shows of the one rank that it names, overdue or not."""
        [file] = (self.run_dir / "incidents").glob("*/incident.json")
        incident = json.loads(file.read_text())
        [rank] = incident["culprits"]
        shown: dict[str, Any] = incident["ranks"][str(rank)]
        return shown

    def said(self, pattern: str) -> re.Match[str] | None:
        """A match in what the launcher printed."""
        return re.search(pattern, self.stderr)

    def leftovers(self) -> list[int]:
        """Living processes that this launcher's ranks started, wherever they went."""
        return marked(f"{self.process.pid}-")

    def written(self, name: str) -> list[str]:
        """Lines of a file that the ranks append to."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


class Launcher:
    """Starts jobs in a folder of their own, and sees to it that nothing of them stays.

    Args:
        folder: Of which theirs are part.
        forks: Launchers of several nodes, which import torch, are its children where they can be.
    """

    def __init__(self, folder: Path, forks: Forks | None = None) -> None:
        self._forks = forks
        self._folder = folder
        self._jobs: list[Job] = []

    @property
    def folder(self) -> Path:
        """Where scripts are, and the folders of jobs."""
        return self._folder

    def script(self, source: str, name: str = "script.py") -> Path:
        """Write a script."""
        return write_script(self._folder / name, source)

    def start(
        self,
        *args: str | Path,
        env: dict[str, str] | None = None,
        module: str = "holdfast.fault_tolerance.launcher",
        prefix: Sequence[str] = (),
    ) -> Job:
        """Start ``ft_launcher`` with these arguments; ``prefix``: a command that executes it."""
        folder = self._folder / f"job{len(self._jobs)}"
        folder.mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHEL"))}
        whole = {**inherited, "OUT": str(folder), **(env or {})}
        words = [str(arg) for arg in args]
        job = Job(folder)
        imports_torch = re.search(r"--nnodes[= ](?!1(?:\s|$))", " ".join(words))
        if self._forks and imports_torch and not prefix and self._forks.can_start(env or {}):
            job.fork(self._forks, module, words, whole)
        else:
            job.start([*prefix, sys.executable, "-m", module, *words], whole)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        for job in self._jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.wait()
        for job in self._jobs:
            until(lambda job=job: not job.leftovers(), "everything of a job is gone")


@contextmanager
def launcher(folder: Path, forks: Forks | None = None) -> Iterator[Launcher]:
    """A launcher whose jobs are ended with the block."""
    jobs = Launcher(folder, forks)
    try:
        yield jobs
    finally:
        jobs.close()


def read_json_lines(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def has_lived(lifes: int, *jobs: Job) -> list[dict[str, int]]:
    """Wait until the rank of each has been started so often; its last lives."""

    def there() -> bool:
        for job in jobs:
            assert job.process.poll() is None, job.stderr
        return all(len(job.written("lives")) >= lifes for job in jobs)

    until(there, f"life {lifes} of all ranks", 2 * BOUND_S)
    return [read_json_lines(job.written("lives"))[-1] for job in jobs]
