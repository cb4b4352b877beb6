"""Order, bounds and results of the GPU suite: see ``make gpu`` and CONTRIBUTING.md.

The tests run in the order of their worth, each within its own bound and all within the budget; what
was found is on disk after each test, and printed when the end comes, however it comes.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.gpu import machine
from tests.gpu.report import BROKE, HELD, SKIPPED, Found, Report
from tests.real.fixtures import ft, ranks
from tests.unit.fake_gpus import FAKE_NVML, fake_pynvml

__all__ = ["ft", "ranks"]

BUDGET_S = float(os.environ.get("HOLDFAST_GPU_BUDGET_S") or 540.0)
LEAST_S = 10.0
"""A test is not begun when less is left."""
_DETAIL = 3000
"""Characters that are kept of each text of a failure."""
_OUTPUTS = ("console.*", "*.out", "*.log", "notes")
_BEGAN_AT = time.monotonic()
_KEY = pytest.StashKey[Found]()
_session: _Session | None = None


class BoundExceeded(Exception):  # noqa: N818 - the name of what happened to a test
    """A test, or the whole suite, has run out of its time."""


class _Session:
    """The suite as it runs: one report, and the test that is running."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.running: Found | None = None
        self._is_shown = False
        self._term: Any = signal.signal(signal.SIGTERM, self._on_sigterm)

    def show(self) -> None:
        """The table, once; past pytest, which may hold its output back."""
        if not self._is_shown:
            self._is_shown = True
            os.write(1, self.report.table().encode())

    def close(self) -> None:
        signal.signal(signal.SIGTERM, self._term)

    def _on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        if self.running is not None:
            self.running.outcome, self.running.why = BROKE, "interrupted by SIGTERM"
        self.report.write()
        self.show()
        pytest.exit("SIGTERM: what was found until now is above", returncode=143)


def left_s() -> float:
    """Seconds of the budget."""
    return BUDGET_S - (time.monotonic() - _BEGAN_AT)


# ---------------------------------------------------------------- what is run, and in which order
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "gpu(order, bound_s): needs a GPU; run by `make gpu`, in this order"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _session  # noqa: PLW0603 - one suite per process
    own = [item for item in items if item.get_closest_marker("gpu")]
    if not own:
        return
    report: Report | None = None
    reason = "run by `make gpu`, on a host with a GPU"
    if machine.mode() in machine.MODES:
        try:
            if machine.is_stand_in():
                _install_fake_nvml()
            report = Report(_result_path(), machine.facts() | _stamp())
        except machine.NoGpuError as error:
            reason = str(error)
    if report is None:
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))
        return
    own.sort(key=lambda item: _marker(item)[0])
    places = [index for index, item in enumerate(items) if item.get_closest_marker("gpu")]
    for index, item in zip(places, own, strict=True):
        items[index] = item
        doc = getattr(item, "function", item).__doc__ or ""
        name = item.name.removeprefix("test_")
        parameter = item.callspec.id if hasattr(item, "callspec") else ""
        claim = " ".join(doc.split("\n\n")[0].split()) + (f" ({parameter})" if parameter else "")
        item.stash[_KEY] = Found(name, claim)
        report.found.append(item.stash[_KEY])
    _session = _Session(report)
    report.write()


def pytest_terminal_summary() -> None:
    if _session is not None:
        _session.report.write()
        _session.show()
        _session.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    found = item.stash.get(_KEY, None)
    if found is None or _session is None:
        return
    result = outcome.get_result()
    found.seconds = round(found.seconds + call.duration, 2)
    if result.skipped:
        found.outcome = SKIPPED
        found.why = str(result.longrepr[2]).removeprefix("Skipped: ")
    elif result.failed:
        found.outcome = BROKE
        found.why = f"{result.when}: " + _first_line(
            str(call.excinfo.value if call.excinfo else "")
        )
        found.detail += str(result.longrepr)[-_DETAIL:] + _output_of(item)
    elif result.when == "call":
        found.outcome = HELD
    if result.when == "teardown":
        _session.running = None
        _session.report.write()


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[0][:300]


def _output_of(item: pytest.Item) -> str:
    """The ends of the files that launchers and ranks of this test write to."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is None:
        return ""
    ends = []
    for path in sorted(file for kind in _OUTPUTS for file in folder.rglob(kind)):
        with contextlib.suppress(OSError):
            ends.append(f"\n--- {path.name}\n{path.read_text(errors='replace')[-_DETAIL:]}")
    return "".join(ends)


def _marker(item: pytest.Item) -> tuple[int, float]:
    marker = item.get_closest_marker("gpu")
    assert marker is not None
    return int(marker.args[0]), float(marker.args[1])


def _result_path() -> Path:
    folder = Path(os.environ.get("HOLDFAST_GPU_RESULTS") or machine.ROOT / "bench" / "results")
    at = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%S")
    return folder / f"gpu-{at}.json"


def _stamp() -> dict[str, Any]:
    command = ["git", "-C", str(machine.ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = ""
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "commit": commit or "unknown", "kernel": os.uname().release}


def _install_fake_nvml() -> None:
    """For this process, and for its children: the driver of the stand-in."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast_gpu_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    state = folder / "nvml.json"
    state.write_text(json.dumps({"gpus": [{"processes": []}]}))
    sys.modules["pynvml"] = fake_pynvml()
    os.environ["FAKE_NVML"] = str(state)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # as on a host that has GPUs: the probes are made
    # torch imports it, too; a parked process imports installed libraries only.
    libraries = folder / "site-packages"
    libraries.mkdir()
    shutil.copy(FAKE_NVML / "pynvml.py", libraries)
    os.environ["PYTHONPATH"] = f"{libraries}:{os.environ.get('PYTHONPATH', '')}"


# ---------------------------------------------------------------- what tests are given
@pytest.fixture(autouse=True)
def bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """The bound of a test, or what is left of the budget."""
    if _session is None:
        yield
        return
    bound_s = min(_marker(request.node)[1], left_s())
    _session.running = request.node.stash[_KEY]
    if bound_s < LEAST_S:
        pytest.skip(f"not begun: {left_s():.0f} s are left of a budget of {BUDGET_S:g} s")

    def expire(_signum: int, _frame: FrameType | None) -> None:
        raise BoundExceeded(f"not done within {bound_s:.0f} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, bound_s)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Found:
    """Where a test keeps its figures and notes."""
    kept: Found = request.node.stash[_KEY]
    return kept


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python on a source; ended with the test, by its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(source: str, **env: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"process{len(started)}.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", source],
                env={**os.environ, "OUT": str(tmp_path), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
