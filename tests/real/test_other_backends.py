"""Launchers that meet over the store of another rendezvous backend: here of a plug-in."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.real.harness import Job, Launcher, has_lived, kill
from tests.waiting import SCALE, until

PLUG_IN = """
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
class SharedFile(RendezvousHandler):
    def __init__(self, params):
        self.params = params
    def get_backend(self):
        return "shared-file"
    def get_run_id(self):
        return self.params.run_id
    def next_rendezvous(self):
        return RendezvousInfo(dist.FileStore(self.params.endpoint), 0, 1, None)
    def is_closed(self):
        return False
    def set_closed(self):
        pass
    def num_nodes_waiting(self):
        return 0
    def shutdown(self):
        return True
def entry_point():
    return SharedFile
"""
"""A rendezvous backend as a package registers it with torch: its store is a file."""

WORKS = """
import json, os, pathlib, time
out = pathlib.Path(os.environ["OUT"])
with open(out / "lives", "a") as file:
    file.write(json.dumps({"pid": os.getpid(), "rank": int(os.environ["RANK"])}) + "\\n")
while not (out.parent / "end").exists():
    time.sleep(0.01)
"""

BOUND_S = 60 * SCALE


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages."""
    about = tmp_path / "site" / "shared_file-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shared-file\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[torchrun.handlers]\nshared-file = shared_file:entry_point\n"
    )
    (about.parent / "shared_file.py").write_text(PLUG_IN)
    return about.parent


def start(ft: Launcher, site: Path, backend: str = "shared-file", nnodes: str = "2") -> Job:
    return ft.start(
        *(f"--nnodes={nnodes}", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=j1"),
        *(f"--rdzv-backend={backend}", f"--rdzv-endpoint={site / 'store'}"),
        f"--rdzv-conf=keep_alive_timeout={20 * SCALE:g},last_call_timeout=20",
        ft.script(WORKS),
        env={"PYTHONPATH": str(site), "NVRX_DISABLE_RANK_MONITORS": "1"},
    )


def test_launchers_meet_restart_and_end_over_the_store_of_a_plug_in(
    ft: Launcher, site: Path, tmp_path: Path
) -> None:
    """And whoever comes to a job that is over is told so, since such a store stays."""
    jobs = [start(ft, site) for _ in range(2)]
    first = has_lived(1, *jobs)

    kill(first[0]["pid"])

    second = has_lived(2, *jobs)
    assert [life["rank"] for life in second] == [life["rank"] for life in first]
    (tmp_path / "end").touch()
    assert [job.wait(BOUND_S) for job in jobs] == [0, 0]

    late = start(ft, site)
    assert late.wait(BOUND_S) == 1
    assert late.said("the job 'j1' is over there .* needs another --rdzv-id")


@pytest.mark.parametrize("nodes", [2, 3])
def test_when_the_leader_is_killed_another_launcher_leads(
    ft: Launcher, site: Path, tmp_path: Path, nodes: int
) -> None:
    """The store says which one; it restarts the ranks without the node that is lost."""
    jobs = [start(ft, site, nnodes=f"1:{nodes}") for _ in range(nodes)]
    has_lived(1, *jobs)
    leader = until(lambda: next((job for job in jobs if job.said("leads the job")), None), "leader")
    others = [job for job in jobs if job is not leader]

    leader.signal(signal.SIGKILL)

    assert sorted(life["rank"] for life in has_lived(2, *others)) == [*range(nodes - 1)]
    assert sum(bool(job.said("leads the job now, in term 1")) for job in others) == 1
    assert not leader.leftovers()
    (tmp_path / "end").touch()
    assert [job.wait(BOUND_S) for job in others] == [0] * (nodes - 1)


def test_a_backend_whose_package_is_missing_is_told_in_one_line(ft: Launcher, site: Path) -> None:
    """With what to install."""
    pytest.importorskip("torch")
    try:
        import etcd  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("python-etcd is installed")
    job = start(ft, site, "etcd")

    assert job.wait(BOUND_S) == 1
    assert job.said("--rdzv-backend etcd needs the Python package '(etcd|urllib3)', which is not")
    assert "Traceback" not in job.stderr
