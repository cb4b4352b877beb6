"""All tests, as ``make unit`` runs them: ``python -m tests [arguments of pytest]``.

Those of single machines and of the simulator come first, in two workers, as there are two cores.
The others start processes, up to eight at a time, and mostly wait for them: four workers. Not side
by side with the first: parked interpreters run only where nobody else wants a core. Where the
arguments name files or folders, pytest alone has those, in one process.

What failed is said once more at the end: of a long log, people and CI often keep the end only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

MACHINES = ("-n", "2", "tests/simulation", "tests/unit")
PROCESSES = (
    *("-n", "4"),
    *("tests/integration", "tests/promises", "tests/real", "tests/cluster", "tests/gpu"),
)
_GOES_ON = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
_TOLD_LINES = 40
_TOLD_COLUMNS = 300
"""Of each failure, at the end: as many of its last lines, and of each line."""


def exit_code_of_all(codes: Iterable[int]) -> int:
    """Of several runs of pytest: ``-k name`` may find a test in one of them only."""
    found = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(found, default=int(pytest.ExitCode.NO_TESTS_COLLECTED))


def names_files(arguments: Iterable[str]) -> bool:
    """Or folders, or tests in files; else they are options alone."""
    return any(Path(word.partition("::")[0]).exists() for word in arguments)


def failures(record: str) -> Iterator[str]:
    """Of each test that failed: its name, and the last lines of what pytest said of it.

    Args:
        record: Of a run, as ``pytest --junitxml`` writes it.
    """
    for case in ET.fromstring(record).iter("testcase"):
        for problem in (*case.iterfind("failure"), *case.iterfind("error")):
            lines = (problem.text or problem.get("message") or "").splitlines()
            name = f"{case.get('classname')}::{case.get('name')}"
            told = [f"FAILED {name}", *lines[-_TOLD_LINES:]]
            yield "\n".join(line[:_TOLD_COLUMNS] for line in told)


def main(arguments: Sequence[str]) -> int:
    if names_files(arguments):
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode
    codes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.xml"
        failed: list[str] = []
        for words in (MACHINES, PROCESSES):
            command = [sys.executable, "-m", "pytest", f"--junitxml={record}"]
            command += ["--dist", "worksteal", *words, *arguments]
            codes.append(subprocess.run(command, check=False).returncode)
            if record.exists():
                failed += failures(record.read_text())
                record.unlink()
            if codes[-1] not in _GOES_ON:
                break
    for each in failed:
        print("", each, sep="\n")
    return exit_code_of_all(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
