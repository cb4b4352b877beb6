"""Which nodes a node is close to: what is said, what Slurm knows, what its GPUs know."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.job.pure.infra_rank import node_domain
from holdfast.node.processes.nvlink import FabricUnknownError, fabric

BLOCK = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_TOPOLOGY_ADDR": "b2.gpu-07"}
SWITCH = {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node", "SLURM_TOPOLOGY_ADDR": "s0.s3.n7"}


@pytest.mark.parametrize(
    ("environ", "domain"),
    [
        pytest.param({}, None, id="nothing is known"),
        pytest.param({"HOLDFAST_NODE_DOMAIN": " rack-7 "}, "rack-7", id="by hand"),
        pytest.param({"HOLDFAST_NODE_DOMAIN": "", **BLOCK}, "b2", id="by Slurm's block"),
        pytest.param({"HOLDFAST_NODE_DOMAIN": "x", **BLOCK}, "x", id="the user knows better"),
        pytest.param(
            {
                "SLURM_TOPOLOGY_ADDR_PATTERN": "block.block.node",
                "SLURM_TOPOLOGY_ADDR": "agg1.b2.n7",
            },
            "agg1",
            id="the largest block",
        ),
        pytest.param(SWITCH, None, id="a switch is no NVLink domain"),
        pytest.param({**BLOCK, "SLURM_TOPOLOGY_ADDR": "n7"}, None, id="not as the pattern says"),
        pytest.param({**BLOCK, "SLURM_TOPOLOGY_ADDR": ".n7"}, None, id="a block without a name"),
        pytest.param({"HOLDFAST_NODE_DOMAIN": "x" * 300}, "x" * 200, id="too long"),
    ],
)
def test_what_the_environment_says(environ: dict[str, str], domain: str | None) -> None:
    assert node_domain(environ) == domain


# ------------------------------------------------------------------ the driver
DRIVER = """
#include <string.h>
#include <unistd.h>
typedef struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } Info;
int nvmlInit_v2(void) { if (HANGS) pause(); return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    *gpu = (void *)(long)(index + 1);
    return 0;
}
int nvmlDeviceGetGpuFabricInfo(void *gpu, Info *info) {
    memset(info, 0, sizeof *info);
    info->uuid[0] = UUID; info->uuid[15] = UUID; info->clique = 7 + ((long)gpu - 1) * STEP;
    info->state = STATE; info->status = STATUS;
    return 0;
}
"""
"""A driver's library in which all is well, unless it is compiled to be otherwise."""


def driver(folder: Path, **otherwise: int) -> str:
    """Path of such a library."""
    facts = {"HANGS": 0, "INIT": 0, "GPUS": 4, "UUID": 0xAB, "STEP": 0, "STATE": 3, "STATUS": 0}
    source, library = folder / "driver.c", folder / "libdriver.so"
    source.write_text(DRIVER)
    defined = [f"-D{name}={value}" for name, value in {**facts, **otherwise}.items()]
    try:
        subprocess.run(
            ["cc", "-shared", "-fPIC", *defined, "-o", str(library), str(source)], check=True
        )
    except FileNotFoundError:
        pytest.skip("there is no C compiler to make a driver's library with")
    return str(library)


def test_the_gpus_of_a_node_are_in_one_fabric(tmp_path: Path) -> None:
    assert fabric(driver(tmp_path)) == "ab000000-0000-0000-0000-0000000000ab.7"


@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        ({"STEP": 1, "GPUS": 2}, r"its GPUs are in 2 NVLink fabrics: ab.*\.7, ab.*\.8"),
        ({"STATE": 0}, "NVLink fabric of GPU 0: not supported"),
        ({"STATE": 2}, "NVLink fabric of GPU 0: in progress"),
        ({"STATUS": 5}, r"NVML says 5 \(NVLink fabric of GPU 0\)"),
        ({"UUID": 0}, "GPU 0 is in no NVLink fabric"),
        ({"GPUS": 0}, "the NVIDIA driver knows no GPU"),
        ({"INIT": 9}, "NVML says 9"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, otherwise: dict[str, int], why: str) -> None:
    with pytest.raises(FabricUnknownError, match=why):
        fabric(driver(tmp_path, **otherwise))


def test_no_driver_and_one_that_hangs_are_no_trouble(tmp_path: Path) -> None:
    """Bounded, whatever it does."""
    with pytest.raises(FabricUnknownError, match="cannot open shared object"):
        fabric(str(tmp_path / "none.so"))
    with pytest.raises(FabricUnknownError, match=r"did not answer for 0\.2 s"):
        fabric(driver(tmp_path, HANGS=1), limit_s=0.2)
