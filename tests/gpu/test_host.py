"""The driver's word about this GPU, and what it costs to ask for it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import time

import pytest

from holdfast.health import gpu, gpu_memory, nvlink
from holdfast.health.pure.health import Fitness
from holdfast.health.xid import Xids
from tests.gpu import machine
from tests.gpu.report import Found
from tests.unit.fake_gpus import fake_pynvml

_LOOKS = 20


@pytest.mark.gpu(3, 30)
def test_the_driver_says_that_the_gpu_is_fit(found: Found) -> None:
    """The probes find a GPU in use healthy, and say what they cannot determine."""
    xids = Xids(None, 1)
    looks = {
        "gpu": lambda: gpu.look(None, 1),
        "nvlink": lambda: nvlink.look(None, 1),
        "xid": xids.look,
    }
    for name, look in looks.items():
        taken = []
        findings = []
        for _ in range(_LOOKS):
            began_at = time.perf_counter()
            findings = look()
            taken.append((time.perf_counter() - began_at) * 1e3)
        found.figure(f"{name}: first look, ms", taken[0])
        found.figure(f"{name}: later looks, ms", sorted(taken[1:])[_LOOKS // 2])
        for finding in findings:
            found.note(f"{finding} [{finding.verdict.value}]")
            assert finding.verdict is not Fitness.UNHEALTHY
    began_at = time.perf_counter()
    found.figure("used, MiB", gpu_memory.used_mib(None, 1)["GPU 0"])
    found.figure("a look at memory, ms", (time.perf_counter() - began_at) * 1e3)


@pytest.mark.gpu(4, 10)
def test_the_fake_has_the_signatures_of_this_nvml(found: Found) -> None:
    """The fake NVML of the CPU tests has the names, numbers and signatures of the installed one."""
    real = importlib.import_module("pynvml")
    fake = fake_pynvml()
    found.note(f"pynvml from {getattr(real, '__file__', '?')}")
    for name in (name for name in vars(fake) if name.lower().startswith("nvml")):
        theirs, ours = getattr(real, name, None), getattr(fake, name)
        if theirs is None:  # an older package: holdfast takes it as a driver that does not tell
            found.note(f"this pynvml has no {name}")
        elif inspect.isfunction(ours):
            given, expected = (list(inspect.signature(f).parameters) for f in (theirs, ours))
            assert len(given) == len(expected), f"{name} takes {given}"
            if given != expected:
                found.note(f"{name} takes {given}, in the fake {expected}")
        elif not inspect.isclass(ours):
            assert ours == theirs, name


@pytest.mark.gpu(60, 60)
def test_the_doctor_examines_this_host(found: Found) -> None:
    """``holdfast doctor`` looks at the GPU and says what it finds."""
    began_at = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "doctor"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    found.figure("took, s", time.monotonic() - began_at)
    for line in done.stdout.splitlines():
        if line.strip():
            found.note(line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert machine.used_mib() >= 0.0
