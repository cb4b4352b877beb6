"""Where the tensor of a collective has to be."""

import pytest

from holdfast.fault_tolerance.timeouts_calc import _device


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda"),
        ("nccl", "cuda"),
    ],
)
def test_gloo_works_on_the_cpu_and_nccl_on_the_gpu(backends, device) -> None:
    """The CPU is preferred: no GPU has to wait."""
    assert _device(backends) == device


@pytest.mark.parametrize("backends", ["mpi", "cpu:mpi", "xpu:xccl"])
def test_other_backends_are_refused(backends) -> None:
    """By name."""
    with pytest.raises(RuntimeError, match=f"has '{backends}'"):
        _device(backends)
