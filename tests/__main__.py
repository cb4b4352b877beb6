"""All tests, as ``make unit`` runs them: ``python -m tests [arguments of pytest]``.

Those of single machines and of the simulator run in two workers at once. The others start
processes that work with each other, up to eight at a time, and follow one by one. Where the
arguments name files or folders, pytest alone has those, in one process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

TWO_AT_A_TIME = ("-n", "2", "--dist", "worksteal", "tests/simulation", "tests/unit")
ONE_AT_A_TIME = ("tests/integration", "tests/real", "tests/cluster", "tests/gpu")
_GOES_ON = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def exit_code_of_all(codes: Iterable[int]) -> int:
    """Of several runs of pytest: ``-k name`` may find a test in one of them only."""
    found = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(found, default=int(pytest.ExitCode.NO_TESTS_COLLECTED))


def main(arguments: Sequence[str]) -> int:
    names_some = any(Path(word.partition("::")[0]).exists() for word in arguments)
    codes = []
    for words in ((),) if names_some else (TWO_AT_A_TIME, ONE_AT_A_TIME):
        command = [sys.executable, "-m", "pytest", *words, *arguments]
        codes.append(subprocess.run(command, check=False).returncode)
        if codes[-1] not in _GOES_ON:
            break
    return exit_code_of_all(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
