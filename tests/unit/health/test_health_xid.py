"""Errors that the driver reports as they happen."""

from __future__ import annotations

import sys
from ctypes import POINTER, Structure, pointer

import pytest

from holdfast.health import xid
from holdfast.health.pure.health import Fitness
from holdfast.health.xid import Xids
from tests.unit.fake_gpus import GPU_IS_LOST, NOT_SUPPORTED, Gpus, gpus

__all__ = ["gpus"]  # a fixture

MIG = "MIG-cccccccc-3333-3333-3333-333333333333"


def texts(probe: Xids) -> list[str]:
    return [finding.text for finding in probe.look()]


def test_an_error_is_told_once_with_its_number_and_its_gpu(gpus: Gpus) -> None:
    """What happened before the first look is history."""
    gpus({}, {"xids": [48]})
    probe = Xids()
    assert texts(probe) == ["", ""]
    gpus({}, {"xids": [48, 94, 94, 999]})
    well, hit = probe.look()
    assert well.verdict is Fitness.HEALTHY
    assert (hit.subject, hit.device, hit.verdict) == ("GPU 1", 1, Fitness.SUSPECT)
    assert hit.text.startswith("Xid 94, 2 times: uncorrectable memory error, contained")
    assert hit.text.endswith("Xid 999: see the driver's lines in dmesg")
    assert texts(probe) == ["", ""]


def test_faults_of_programs_are_not_the_gpus(gpus: Gpus) -> None:
    """A process that is killed leaves some behind, at each restart."""
    gpus({})
    probe = Xids()
    probe.look()
    gpus({"xids": [13, 31, 43, 45]})
    assert texts(probe) == [""]


def test_the_error_of_a_gpu_is_that_of_all_its_instances(gpus: Gpus) -> None:
    other = MIG.replace("c", "d")
    state = {"mig": [{"uuid": MIG}, {"uuid": other}]}
    gpus(state)
    probe = Xids(f"{MIG},{other}")
    probe.look()
    gpus(state | {"xids": [95]})
    assert [finding.verdict for finding in probe.look()] == [Fitness.SUSPECT] * 2


def test_the_error_with_which_a_gpu_is_lost_is_told(gpus: Gpus) -> None:
    """Though the driver answers no question about it any more."""
    gpus({}, {})
    probe = Xids()
    probe.look()
    gpus({}, {"xids": [79], "error": GPU_IS_LOST})
    assert texts(probe) == ["", "Xid 79: the GPU has fallen off the bus"]


def test_what_was_told_before_the_driver_failed_is_kept(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus({})
    probe = Xids()
    probe.look()
    pynvml = sys.modules["pynvml"]
    wait = pynvml.nvmlEventSetWait_v2

    def fails_then(*arguments):
        try:
            return wait(*arguments)
        except pynvml.NVMLError:
            raise pynvml.NVMLError(GPU_IS_LOST) from None

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", fails_then)
    gpus({"xids": [79]})
    assert texts(probe) == ["Xid 79: the GPU has fallen off the bus"]
    [finding] = probe.look()
    assert (finding.subject, finding.verdict) == ("driver", Fitness.UNKNOWN)


def test_a_gpu_that_reports_nothing_is_unknown(gpus: Gpus) -> None:
    gpus({"errors": {"nvmlDeviceRegisterEvents": NOT_SUPPORTED}}, {"error": GPU_IS_LOST}, {})
    verdicts = [finding.verdict for finding in Xids().look()]
    assert verdicts == [Fitness.UNKNOWN, Fitness.UNKNOWN, Fitness.HEALTHY]


def test_without_a_driver_nothing_is_heard_and_it_is_tried_again(gpus: Gpus) -> None:
    probe = Xids()
    [finding] = probe.look()
    assert finding.verdict is Fitness.UNKNOWN
    gpus({})
    assert texts(probe) == [""]


def test_handles_that_point_to_the_same_gpu_are_the_same() -> None:
    """As in pynvml, which makes a new pointer for each event."""

    class Device(Structure):
        pass

    one, other = Device(), Device()
    assert xid._address(pointer(one)) == xid._address(POINTER(Device)(one))
    assert xid._address(pointer(one)) != xid._address(pointer(other))


def test_more_errors_than_are_counted_come_to_an_end(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xid, "_MOST_AT_ONCE", 3)
    gpus({})
    probe = Xids()
    probe.look()
    gpus({"xids": [48] * 10})
    assert texts(probe) == ["Xid 48, 3 times: uncorrectable memory error"]
