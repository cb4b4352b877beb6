"""What all tests share: a temporary folder for what they start, and examples without a clock."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import seeds

# Where the environment forbids it, some thousand processes would compile the package, each anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "all",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not seeds.FRESH,
)
settings.load_profile("all")

# Ignored signals are inherited: a shell's background jobs ignore SIGINT, nohup's SIGHUP.
for _signal, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)


@pytest.fixture(autouse=True, scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Launchers keep the folder of a run with incidents, for people; nobody reads a test's.

    Pytest's own folders, with what a failed test has left, stay where they are.
    """
    tmp_path_factory.getbasetemp()
    before = os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests_")
    yield
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    tempfile.tempdir = None
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before


@pytest.fixture
def first_seed(request: pytest.FixtureRequest) -> int:
    """Of a test that takes some seeds in a row; see :mod:`tests.seeds`."""
    return seeds.first_seed(request.node.name)


@pytest.fixture(scope="module")
def small_heap() -> None:
    """For tests that collect garbage: it takes 0.3 s among all objects of pytest and torch."""
    gc.collect()
    gc.freeze()


def pytest_collection() -> None:
    """Modules that are imported are no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay: no collection of garbage looks at them again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Of a program that did not end in time, the failure tells what it had written by then."""
    try:
        return (yield)
    except subprocess.TimeoutExpired as error:
        for name, written in (("stdout", error.stdout), ("stderr", error.stderr)):
            text = written.decode(errors="replace") if isinstance(written, bytes) else ""
            if text and hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note("\n".join([f"the end of its {name}:", *text.splitlines()[-12:]]))
        raise
