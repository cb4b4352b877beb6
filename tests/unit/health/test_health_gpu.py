"""What the driver says about GPUs, and what that means for a node."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys

import pytest

import holdfast.health
from holdfast.health import gpu, gpu_memory, nvlink, nvml
from holdfast.health.pure.health import Finding, Fitness, finding_of
from tests.processes import bystander
from tests.unit.fake_gpus import (
    FAKE_NVML,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    Gpus,
    fake_pynvml,
    gpus,
)

__all__ = ["gpus"]  # a fixture

A, B = "GPU-aaaaaaaa-1111-1111-1111-111111111111", "GPU-bbbbbbbb-2222-2222-2222-222222222222"
MIG = "MIG-cccccccc-3333-3333-3333-333333333333"


def only(findings: list[Finding]) -> Finding:
    [finding] = findings
    return finding


# ---------------------------------------------------------------- fit or not
def test_a_gpu_that_needs_nothing_is_healthy(gpus: Gpus) -> None:
    gpus({})
    assert gpu.look(None) == [Finding("gpu", "GPU 0", Fitness.HEALTHY, "", 0)]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (1, "nvidia-smi --gpu-reset"),
        (2, "reboot this node"),
        (3, "all GPUs of this node"),
        (4, "give it no new work"),
        (7, "reboot this node"),
        (99, "nvidia-smi -q"),
    ],
)
def test_a_gpu_that_needs_a_recovery_action_is_not_used(gpus: Gpus, action: int, words: str):
    """Whatever the action, ones that come later included; the text says what a person does."""
    gpus({}, {"recovery_action": action})
    well, broken = gpu.look(None)
    assert well.verdict is Fitness.HEALTHY
    assert broken.verdict is Fitness.UNHEALTHY
    assert broken.device == 1
    assert f"recovery action {action}" in broken.text
    assert words in broken.text


def test_work_that_is_under_way_may_end_on_a_gpu_that_is_to_be_drained(gpus: Gpus) -> None:
    """The driver says that work goes on; ending it would be our fault, not the GPU's."""
    gpus({"recovery_action": 4}, {"recovery_action": 1})
    verdicts = [finding.verdict for finding in gpu.look(None, ranks_run=True)]
    assert verdicts == [Fitness.SUSPECT, Fitness.UNHEALTHY]


def test_a_driver_that_knows_no_recovery_actions_is_not_asked(gpus: Gpus) -> None:
    """Nothing is known against the GPU, and the text says since when a driver would know."""
    gpus({"recovery_action": 1}, driver="535.183.01")
    finding = only(gpu.look(None))
    assert finding.verdict is Fitness.UNKNOWN
    assert "535.183.01" in finding.text
    assert "570" in finding.text


@pytest.mark.parametrize("error", [NOT_SUPPORTED, UNKNOWN_ERROR])
def test_an_action_that_is_not_told_is_unknown(gpus: Gpus, error: int) -> None:
    gpus({"errors": {"nvmlDeviceGetFieldValues": error}}, {"recovery_action": None})
    assert [finding.verdict for finding in gpu.look(None)] == [Fitness.UNKNOWN] * 2


@pytest.mark.parametrize("error", [GPU_IS_LOST, RESET_REQUIRED])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors",
    ],
)
def test_a_lost_gpu_is_not_used_whichever_question_finds_out(
    gpus: Gpus, error: int, function: str
) -> None:
    gpus({}, {"errors": {function: error}})
    well, lost = gpu.look(None)
    assert well.verdict is Fitness.HEALTHY
    assert (lost.subject, lost.verdict) == ("GPU 1", Fitness.UNHEALTHY)
    assert "reboot" in lost.text


def test_a_gpu_keeps_its_name_when_it_is_lost_and_comes_back(gpus: Gpus) -> None:
    """So that whoever compares looks sees one GPU, not two."""
    gpus({"uuid": A}, {"uuid": B})
    before = gpu.look(B)
    gpus({"uuid": A}, {"uuid": B, "error": GPU_IS_LOST})
    lost = only(gpu.look(B))
    gpus({"uuid": A}, {"uuid": B})
    assert gpu.look(B) == before
    assert (lost.subject, lost.verdict) == (before[0].subject, Fitness.UNHEALTHY)


def test_a_row_of_memory_that_could_not_be_replaced_keeps_the_gpu_out(gpus: Gpus) -> None:
    gpus({"remapped_rows": [0, 3, 0, 1]})
    finding = only(gpu.look(None))
    assert finding.verdict is Fitness.UNHEALTHY
    assert "after 3 that could" in finding.text


def test_memory_that_waits_for_a_reset_counts_where_the_driver_does_not_judge(gpus: Gpus) -> None:
    """A driver that knows what its GPUs need is believed."""
    waiting, waiting_old = {"remapped_rows": [0, 1, 1, 0]}, {"remapped_rows": None}
    gpus(waiting, waiting_old | {"retired_pending": 1}, driver="535.1")
    assert [finding.verdict for finding in gpu.look(None)] == [Fitness.UNHEALTHY] * 2
    assert [f.verdict for f in gpu.look(None, ranks_run=True)] == [Fitness.SUSPECT] * 2
    gpus(waiting, waiting_old | {"retired_pending": 1}, driver="570.1")
    assert [finding.verdict for finding in gpu.look(None)] == [Fitness.SUSPECT] * 2


def test_errors_that_were_contained_are_told_and_keep_nobody_out(gpus: Gpus) -> None:
    gpus({"ecc_uncorrected": 2})
    finding = only(gpu.look(None))
    assert finding.verdict is Fitness.SUSPECT
    assert finding.text.startswith("2 uncorrectable memory errors")


def test_a_gpu_without_ecc_has_nothing_to_tell(gpus: Gpus) -> None:
    gpus({"ecc_uncorrected": None, "remapped_rows": None})
    assert only(gpu.look(None)).verdict is Fitness.HEALTHY


def test_an_error_that_says_nothing_is_unknown(gpus: Gpus) -> None:
    gpus({"errors": {"nvmlDeviceGetTotalEccErrors": UNKNOWN_ERROR}})
    assert only(gpu.look(None)).verdict is Fitness.UNKNOWN


def test_without_a_driver_nothing_is_known_in_one_line(gpus: Gpus) -> None:
    finding = only(gpu.look(None))  # the library is missing
    assert (finding.verdict, finding.device) == (Fitness.UNKNOWN, None)
    assert "NVML Shared Library Not Found" in finding.text
    gpus({}, init_error=9)
    assert "Driver Not Loaded" in only(gpu.look(None)).text
    gpus({})
    assert only(gpu.look(None)).verdict is Fitness.HEALTHY, "loaded meanwhile"


def test_without_the_package_nothing_is_known_and_it_is_named(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    finding = only(gpu.look(None))
    assert finding.verdict is Fitness.UNKNOWN
    assert "nvidia-ml-py" in finding.text
    assert gpu_memory.used_mib(None) == {}


def test_the_worst_fact_decides_and_comes_first() -> None:
    told = [(Fitness.UNKNOWN, "b"), (Fitness.UNHEALTHY, "a"), (Fitness.SUSPECT, "c")]
    assert finding_of("p", "s", told) == Finding("p", "s", Fitness.UNHEALTHY, "a; c; b")
    assert finding_of("p", "s", []) == Finding("p", "s", Fitness.HEALTHY)


# ---------------------------------------------------------------- which GPUs
@pytest.mark.parametrize(
    ("visible_devices", "seen"),
    [
        (None, ["GPU 0", "GPU 1"]),
        ("1,0", ["GPU 1", "GPU 0"]),
        (" 1 ", ["GPU 1"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU 0"]),
        ("0,7,1", ["GPU 0"]),
        ("NoDevFiles", []),
        (B, ["GPU 1"]),
        ("GPU-bbbb,GPU-aaaa", ["GPU 1", "GPU 0"]),
        (MIG, [f"GPU 1 {MIG}"]),
        (f"MIG-{B}/1/0", [f"GPU 1 MIG-{B}/1/0"]),
    ],
)
def test_only_gpus_that_ranks_see_are_looked_at(gpus: Gpus, visible_devices, seen) -> None:
    """In the order in which CUDA counts them; as in CUDA, the list ends before a wrong entry."""
    gpus({"uuid": A}, {"uuid": B, "mig": [{"uuid": MIG}]})
    findings = gpu.look(visible_devices)
    assert [finding.subject for finding in findings] == seen
    assert [finding.device for finding in findings] == list(range(len(seen)))


def test_gpus_beyond_the_number_of_ranks_are_not_looked_at(gpus: Gpus) -> None:
    gpus({}, {"recovery_action": 1})
    assert [finding.subject for finding in gpu.look(None, 1)] == ["GPU 0"]


def test_a_uuid_that_the_driver_does_not_know_is_told(gpus: Gpus) -> None:
    """It may be a mistake, and is the GPU that was lost if one was lost before it was asked."""
    gpus({"uuid": A})
    unknown = only(gpu.look("GPU-dead"))
    assert (unknown.subject, unknown.verdict) == ("GPU GPU-dead", Fitness.SUSPECT)
    gpus({"uuid": A}, {"error": GPU_IS_LOST})
    assert only(gpu.look("GPU-dead")).verdict is Fitness.UNHEALTHY
    assert only(gpu.look(MIG)).verdict is Fitness.SUSPECT


def test_the_health_of_a_mig_instance_is_that_of_its_gpu(gpus: Gpus) -> None:
    gpus({"recovery_action": 2, "mig": [{"uuid": MIG}]})
    assert only(gpu.look(MIG)).verdict is Fitness.UNHEALTHY


# ---------------------------------------------------------------- memory
def test_memory_in_use_is_without_what_the_driver_keeps(gpus: Gpus) -> None:
    """Its own part alone is more than a usual tolerance, and is never given back."""
    gpus({"used_mib": 10, "reserved_mib": 600}, {"used_mib": 2000})
    assert gpu_memory.used_mib(None) == {"GPU 0": 10.0, "GPU 1": 2000.0}
    assert gpu_memory.used_mib("1", 1) == {"GPU 1": 2000.0}


def test_an_old_driver_is_asked_in_its_own_way(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus({"used_mib": 10, "reserved_mib": 0})
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlMemory_v2", 7)
    assert gpu_memory.used_mib(None) == {"GPU 0": 10.0}
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo")
    assert gpu_memory.used_mib(None) == {}


def test_a_mig_instance_has_memory_of_its_own(gpus: Gpus) -> None:
    gpus({"used_mib": 9000, "mig": [{"uuid": MIG, "used_mib": 5, "processes": []}]})
    assert gpu_memory.used_mib(MIG) == {f"GPU 0 {MIG}": 5.0}


def test_a_gpu_that_does_not_tell_its_memory_is_left_out(gpus: Gpus) -> None:
    gpus({"errors": {"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}}, {"error": GPU_IS_LOST}, {})
    assert list(gpu_memory.used_mib(None)) == ["GPU 2"]


def test_holders_are_named_as_long_as_they_live(gpus: Gpus) -> None:
    with bystander() as holder:
        gpus({"processes": [[holder.pid, 100]]}, {"processes": [[os.getpid(), 1]]})
        assert gpu_memory.holders(None) == sorted([holder.pid, os.getpid()])
        assert gpu_memory.holders("0") == [holder.pid]
        holder.kill()
    assert gpu_memory.holders("0") == []
    assert gpu_memory.used_mib("0") == {"GPU 0": 4.0}
    gpus({"errors": {"nvmlDeviceGetComputeRunningProcesses": NOT_SUPPORTED}})
    assert gpu_memory.holders(None) == []


# ---------------------------------------------------------------- NVLink
def test_a_gpu_with_fewer_links_than_its_like_is_suspect(gpus: Gpus) -> None:
    gpus({"nvlinks": [1] * 18}, {"nvlinks": [1] * 16 + [0, 0]}, {"name": "T4", "nvlinks": []})
    well, fewer, none = nvlink.look(None)
    assert (well.verdict, none.verdict) == (Fitness.HEALTHY, Fitness.HEALTHY)
    assert fewer.verdict is Fitness.SUSPECT
    assert "16 of 18 links are active, 18 on others" in fewer.text


def test_links_that_are_unused_on_every_gpu_are_how_the_machine_is_built(gpus: Gpus) -> None:
    gpus({"nvlinks": [1, 1, 0, 0]}, {"nvlinks": [1, 1, 0, 0]})
    assert [finding.verdict for finding in nvlink.look(None)] == [Fitness.HEALTHY] * 2


def test_gpus_that_no_rank_uses_are_compared_with_but_not_told(gpus: Gpus) -> None:
    gpus({"nvlinks": [1, 0]}, {"nvlinks": [1, 1]})
    assert only(nvlink.look(None, 1)).verdict is Fitness.SUSPECT


def test_links_of_a_lost_gpu_are_unknown(gpus: Gpus) -> None:
    assert only(nvlink.look(None)).verdict is Fitness.UNKNOWN
    gpus({"errors": {"nvmlDeviceGetNvLinkState": GPU_IS_LOST}}, {"error": GPU_IS_LOST}, {})
    verdicts = [finding.verdict for finding in nvlink.look(None)]
    assert verdicts == [Fitness.UNKNOWN, Fitness.UNKNOWN, Fitness.HEALTHY]


# ---------------------------------------------------------------- asked by a rank
def test_a_rank_hears_about_its_own_gpu(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is CUDA's in that process."""
    gpus({"recovery_action": 1}, {}, {"nvlinks": [1]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,1")
    assert holdfast.health.gpu_problem(0) is None
    assert "GPU 0: the driver asks for recovery action 1" in str(holdfast.health.gpu_problem(1))
    assert holdfast.health.gpu_problem(None) == holdfast.health.gpu_problem(1)
    assert holdfast.health.gpu_problem(9) is None
    assert holdfast.health.nvlink_problem(0) is None
    assert "0 of 0 links" in str(holdfast.health.nvlink_problem(2))


def test_a_rank_that_is_given_one_device_may_ask_with_its_local_rank(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is device 0 for CUDA there: a MIG instance, or a GPU that the launching script chose."""
    gpus({}, {"uuid": B, "recovery_action": 1, "mig": [{"uuid": MIG}]})
    for visible_devices in ("1", B, MIG):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible_devices)
        assert "recovery action 1" in str(holdfast.health.gpu_problem(3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert holdfast.health.gpu_problem(3) is None


def test_a_rank_without_a_driver_hears_nothing(gpus: Gpus) -> None:
    assert holdfast.health.gpu_problem(None) is None
    assert holdfast.health.nvlink_problem(0) is None
    with pytest.raises(AttributeError, match="nothing"):
        holdfast.health.nothing  # noqa: B018


# ---------------------------------------------------------------- the fake
def test_the_fake_has_the_names_and_numbers_of_the_real_one() -> None:
    """So that a test against it says something about the real one."""
    real, fake = importlib.import_module("pynvml"), fake_pynvml()
    public = [name for name in vars(fake) if name.lower().startswith("nvml")]
    assert len(public) > 30
    for name in public:
        theirs, ours = getattr(real, name), getattr(fake, name)
        if inspect.isfunction(ours):
            same = inspect.signature(theirs).parameters.keys()
            assert inspect.signature(ours).parameters.keys() == same, name
        elif not inspect.isclass(ours):
            assert ours == theirs, name
    for code, text in fake._TEXTS.items():
        assert str(real.NVMLError(code)) == text


def test_the_fake_is_found_by_another_process(gpus: Gpus) -> None:
    gpus({"used_mib": 7})
    code = "from holdfast.health import gpu_memory; print(gpu_memory.used_mib(None))"
    env = {**os.environ, "PYTHONPATH": str(FAKE_NVML)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    assert done.stdout == "{'GPU 0': 7.0}\n"


def test_the_real_library_is_asked_and_answers_or_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a GPU, and without: no exception, and one finding for each thing."""
    monkeypatch.setattr(nvml, "_loaded", None)
    findings = [*gpu.look(None), *nvlink.look(None)]
    names = [(finding.probe, finding.subject) for finding in findings]
    assert names
    assert len(set(names)) == len(names)
    assert all(used >= 0.0 for used in gpu_memory.used_mib(None).values())
    assert all(pid > 0 for pid in gpu_memory.holders(None))
