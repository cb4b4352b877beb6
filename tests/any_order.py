"""Tests of real processes where events come in any order: ``python -m tests.any_order [...]``.

A quiet machine shows one order of events, and one speed. Here launchers, monitors and guards run
from a copy of the package whose loop pauses and takes what is ready in random order, and a test
pauses before it looks at a process or a file, so that either side may be far ahead of the other.
Arguments are pytest's; all of tests/integration and tests/real by themselves, in 15 minutes.
What fails here and nowhere else is a defect of the test or of the product: find out which.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.net.descriptors import Descriptors
from tests.__main__ import names_files

LOOP = Path("net", "descriptors.py")
DISTURBED = '''

def _in_any_order(self: Descriptors, timeout_s: float | None) -> None:
    """As ``wait``, after 0 to 30 ms, 15 in the mean; and the last to be ready may be the first."""
    from os import urandom

    ready = self.epoll.poll(timeout_s and min(timeout_s, wait_for.LONGEST_S))
    select.poll().poll(urandom(1)[0] * 30 // 255)
    for fd, _ in sorted(ready, key=lambda _: urandom(4)):
        callback = self._callbacks.get(fd)
        if callback is not None:
            callback()


Descriptors.wait = _in_any_order
'''
LOOKED_AT = "/proc/", tempfile.gettempdir() + "/"
"""Files of processes, and those of tests."""
PAUSE_S_MAX = 0.015
"""Of a test, before every other look."""
_CHANCE = random.Random()
"""Not that of the module, which Hypothesis sees to."""


def _pause(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook."""
    if event in ("open", "os.listdir", "os.scandir"):
        looks = str(arguments[0]).startswith(LOOKED_AT)
    else:
        looks = event in ("os.kill", "subprocess.Popen", "socket.connect")
    if looks and _CHANCE.random() < 0.5:
        time.sleep(_CHANCE.random() * PAUSE_S_MAX)


def pytest_configure(config: pytest.Config) -> None:
    """This module is a plug-in of the pytest that it starts."""
    assert Descriptors.wait.__name__ == "_in_any_order", "the copy comes first"
    own = os.getpid()
    sys.addaudithook(lambda event, args: _pause(event, args) if os.getpid() == own else None)


def main(arguments: list[str]) -> int:
    package = Path(holdfast.__file__).parent
    with tempfile.TemporaryDirectory(prefix="any_order_") as folder:
        copy = Path(folder) / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / LOOP).open("a") as file:
            file.write(DISTURBED)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.any_order",
            "-o",
            "timeout=600",
            *arguments,
        ]
        words += [] if names_files(arguments) else ["tests/integration", "tests/real"]
        return subprocess.run(words, check=False, env={**os.environ, "PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
