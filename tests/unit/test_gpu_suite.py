"""The suite that needs a GPU, without one: what it keeps, prints, and does when its time is up."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from docs.tables import SEEN, claims

from tests.gpu import machine
from tests.gpu.device import CpuStandIn, CudaDevice
from tests.gpu.report import BROKE, HELD, SKIPPED, Found, Report, main
from tests.waiting import BOUND_S, until

SUITE = [sys.executable, "-m", "pytest", "-c", "tests/gpu/gpu.ini", "--rootdir=."]
SUITE += ["-p", "no:cacheprovider", "tests/gpu"]


def start(folder: Path, mode: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    whole = {
        **os.environ,
        "HOLDFAST_GPU": mode,
        "HOLDFAST_GPU_RESULTS": str(folder),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": "src",
        "TMPDIR": str(folder),
        **env,
    }
    return subprocess.Popen(
        [*SUITE, *arguments], cwd=machine.ROOT, env=whole, stdout=subprocess.PIPE, text=True
    )


def results(folder: Path) -> dict[str, dict[str, object]]:
    (path,) = folder.glob("gpu-*.json")
    return {found["name"]: found for found in json.loads(path.read_text())["tests"]}


def test_results_are_kept_printed_and_become_rows_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not reached is told as well; a file is replaced whole."""
    report = Report(tmp_path / "new" / "gpu.json", {"gpu": "H200", "driver": "580.1", "nccl": ""})
    held, broke, skipped, later = (Found(f"test{n}", f"Claim {n}.") for n in range(4))
    report.found = [held, broke, skipped, later]
    held.outcome, held.seconds = HELD, 3.25
    held.figure("took, s", 1.23456)
    held.note(" a word\n")
    broke.outcome, broke.why = BROKE, "it grows"
    skipped.outcome, skipped.why = SKIPPED, "one GPU only"
    report.write()

    assert [path.name for path in report.path.parent.iterdir()] == ["gpu.json"]
    lines = [" ".join(line.split()) for line in report.table().splitlines()]
    assert "GPU suite: gpu H200, driver 580.1, nccl" in lines
    assert "held 3.2 s test0" in lines
    assert "took, s 1.2346" in lines
    assert "a word" in lines
    assert "BROKE 0.0 s test1: it grows" in lines
    assert f"1 held, 1 BROKE, 1 skipped, 1 not reached; {report.path}" in lines
    main([str(report.path)])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| Claim 0. | yes | gpu H200, driver 580.1 | took, s 1.2346 |",
        "| Claim 1. | no: it grows | gpu H200, driver 580.1 |  |",
        "| Claim 2. | skipped: one GPU only | gpu H200, driver 580.1 |  |",
        "| Claim 3. | not yet | gpu H200, driver 580.1 |  |",
    ]
    report.host["is_stand_in"] = True
    report.write()
    with pytest.raises(ValueError, match="no GPU was seen"):
        main([str(report.path)])


def test_the_docs_list_every_claim_of_the_suite() -> None:
    """Seen on a GPU, or not yet: a reader finds which."""
    listed = json.loads(SEEN.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(name for name, _ in claims())
    assert len(listed) > 15
    assert {seen for seen, _ in listed.values()} <= {"yes", "**no**", "not yet"}


def test_the_stand_in_offers_what_the_gpu_offers() -> None:
    """The same methods and parameters, in place of functions that torch.cuda really has."""
    public = {name: m for name, m in vars(CudaDevice).items() if not name.startswith("_")}
    assert len(public) > 10
    for name, method in public.items():
        other = getattr(CpuStandIn, name)
        if callable(method):
            assert inspect.signature(other) == inspect.signature(method), name
    source = inspect.getsource(CpuStandIn.begin)
    replaced = re.findall(r"cuda\.(\w+) = ", source)
    assert "is_current_stream_capturing" in replaced
    for name in replaced:
        theirs = getattr(torch.cuda, name)
        assert callable(theirs), name
    assert callable(torch.cuda.Stream.query)
    assert set(inspect.signature(torch.cuda.synchronize).parameters) == {"device"}


def test_a_scenario_runs_with_a_stand_in_for_the_gpu(tmp_path: Path) -> None:
    """A real launcher, its health process with the fake NVML, the table, the file."""
    process = start(tmp_path, "stand-in", "-k", "keeps_no_context")
    output, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, output
    assert "held" in output
    found = results(tmp_path)["the_health_process_keeps_no_context"]
    assert found["outcome"] == HELD
    assert found["figures"]
    assert len(results(tmp_path)) > 20, "the others are listed as not reached"


def test_a_suite_without_time_begins_nothing_and_says_so(tmp_path: Path) -> None:
    """The budget counts for all tests together."""
    process = start(tmp_path, "stand-in", HOLDFAST_GPU_BUDGET_S="1")
    output, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, output
    assert {found["outcome"] for found in results(tmp_path).values()} == {SKIPPED}
    assert "left of a budget of 1 s" in output


def test_a_suite_that_is_ended_has_told_what_it_found(tmp_path: Path) -> None:
    """SIGTERM: the table and the file come first, then what was started is ended."""
    process = start(tmp_path, "stand-in", "-k", "plain_start or signatures")
    until(lambda: list(tmp_path.glob("gpu-*.json")), "a file of results")
    until(lambda: HELD in {f["outcome"] for f in results(tmp_path).values()}, "a first result")
    # Folders of its processes come and go; os.walk passes over one that is gone.
    until(lambda: any("console.err" in each[2] for each in os.walk(tmp_path)), "a launcher")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 143
    assert output.index("GPU suite:") < output.index("SIGTERM: what was found")
    found = results(tmp_path)
    assert found["a_rank_restarts_from_a_plain_start"]["why"] == "interrupted by SIGTERM"
    assert found["the_fake_has_the_signatures_of_this_nvml"]["outcome"] == HELD


def test_without_a_gpu_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver; or a torch that cannot use it; nothing is measured then."""
    monkeypatch.setenv("HOLDFAST_GPU", "cuda")
    monkeypatch.setattr(machine, "_NODES", ("/nonexistent/nvidiactl",))
    with pytest.raises(machine.NoGpuError, match="no NVIDIA driver here"):
        machine.facts()
    monkeypatch.setattr(machine, "_NODES", ("/dev/null",))
    monkeypatch.setattr(machine, "_PROBE", """print('{"torch": "2.13.0", "cuda": null}')""")
    with pytest.raises(machine.NoGpuError, match=r"torch 2.13.0 \(CUDA None\) sees no GPU"):
        machine.facts()
    monkeypatch.setattr(machine, "_PROBE", "raise OSError('libcuda.so.1 is missing')")
    with pytest.raises(machine.NoGpuError, match=r"libcuda\.so\.1 is missing"):
        machine.facts()
