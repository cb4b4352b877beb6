"""Limits calculated by real processes over gloo: every rank ends with the same ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.fake_monitor import FakeMonitor, rank_environment

BOUND_S = 90
ROOT = Path(__file__).parents[2]

PROLOGUE = """
import json, os, sys
sys.modules["__main__"].__file__ = json.__file__  # a script, as jobs have one
from tests.real import light_torch
import torch.distributed as dist
from holdfast.errors import RankMonitorClientError, TimeoutsCalcError
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.page.pure import page

client = RankMonitorClient()  # before there is a process group, as trainers do
dist.init_process_group(
    "gloo", init_method=os.environ["STORE"], rank=int(os.environ["PG_RANK"]), world_size=2
)
rank = dist.get_rank()
client.init_workload_monitoring()

def measured(name, longest_s):
    client._clocks[name].longest_s = longest_s

def done(**result):
    print(json.dumps({"rank": client.rank_info.global_rank, **result}))
    dist.barrier()
    dist.destroy_process_group()
    client.shutdown_workload_monitoring()
"""


@pytest.fixture
def run_two(tmp_path):
    """Run a script on two ranks, each with a monitor; gives what each of them printed."""
    monitors = []

    def run(script: str, *, first: dict | None = None, **cfg) -> list[dict]:
        ranks = []
        for rank in range(2):
            folder = tmp_path / str(rank)
            folder.mkdir()
            more = first if first and rank == 0 else {}
            monitors.append(FakeMonitor(folder, **{**cfg, **more}))
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROLOGUE + script],
                    env=rank_environment(
                        monitors[-1],
                        RANK=str(7 + rank),  # the process group knows better
                        PG_RANK=str(rank),
                        STORE=f"file://{tmp_path}/store",
                        OMP_NUM_THREADS="1",
                    ),
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = []
        for process in ranks:
            try:
                outputs.append(process.communicate(timeout=BOUND_S))
            except subprocess.TimeoutExpired:
                process.kill()
                outputs.append(process.communicate())
        assert [process.returncode for process in ranks] == [0, 0], outputs
        return [json.loads(out.splitlines()[-1]) for out, _ in outputs]

    yield run
    for monitor in monitors:
        monitor.close()


def test_all_ranks_get_the_longest_interval_of_any(run_two) -> None:
    """MAX over ranks, safety factor, floor, average with what was learned, JSON and back."""
    results = run_two(
        """
# Rank 0 has long heartbeat gaps, rank 1 long steps and the only save.
client._words[page.LONGEST_INITIAL] = 8.0 if rank == 0 else 1.0
client._longest_gap = 4.0 if rank == 0 else 2.0
measured("step", 1.0 if rank == 0 else 5.0)
if rank == 1:
    measured("save", 0.5)
client._longest_outside = 3.0
client.start_section("step")  # or the open stretch outside would count
assert client.calculate_and_set_hb_timeouts()
assert client.calculate_and_set_section_timeouts()
first = client.state_dict()
client._longest_gap = 6.0
measured("save", 1.0)
assert client.calculate_and_set_hb_timeouts()
assert client.calculate_and_set_section_timeouts(["save"], calc_out_of_section=False)
second = json.loads(json.dumps(client.state_dict()))
again = RankMonitorClient()
again.load_state_dict(second)
client.shutdown_workload_monitoring()
again.init_workload_monitoring()
reloaded = again.state_dict()
again.shutdown_workload_monitoring()
client.init_workload_monitoring()
done(first=first, second=second, reloaded=reloaded)
""",
        rank_section_timeouts={"step": 600.0, "save": None},
        safety_factor=2.0,
        learned_timeout_floor=1.5,
    )
    assert [result.pop("rank") for result in results] == [0, 1]
    assert results[0] == results[1]
    first, second = (results[0][key]["current_timeouts"] for key in ("first", "second"))
    assert first == {
        "heartbeat": {"initial": 16.0, "subsequent": 8.0, "were_calculated": True},
        "section": {
            "section": {"step": 10.0, "save": 1.5},
            "out_of_section": 6.0,
            "calculated_sections": ["save", "step"],
            "is_out_of_section_calculated": True,
        },
    }
    assert second["heartbeat"] == {"initial": 16.0, "subsequent": 10.0, "were_calculated": True}
    assert second["section"]["section"] == {"step": 10.0, "save": 1.75}
    assert results[0]["reloaded"] == results[0]["second"]


def test_data_on_any_rank_is_enough_and_on_none_it_is_not(run_two) -> None:
    """Not ready is the same verdict everywhere, reached together."""
    results = run_two(
        """
results = [client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)]
try:
    client.calculate_and_set_section_timeouts(["step"])
except RankMonitorClientError as error:
    results.append(str(error))
if rank == 1:
    client.start_section("step")
    client.end_section("step")
    client.send_heartbeat()
    client.send_heartbeat()
results.append(client.calculate_and_set_section_timeouts(["step"]))
results.append(client.calculate_and_set_section_timeouts(skip_if_not_ready=True))
results.append(client.calculate_and_set_hb_timeouts())
done(results=results, calculated=sorted(client.section_timeouts.calculated_sections))
""",
        rank_section_timeouts={"step": 600.0, "save": None},
    )
    for result in results:
        skipped, refusal, *later = result["results"]
        assert skipped is False
        assert "no rank has measured: section 'step'" in refusal
        assert later == [True, False, True]
        assert result["calculated"] == ["step"]


def test_ranks_that_disagree_about_their_sections_find_out(run_two) -> None:
    """All of them are told; none waits for ever, none takes another section's interval."""
    results = run_two(
        """
try:
    client.calculate_and_set_section_timeouts()
except TimeoutsCalcError as error:
    done(error=str(error))
""",
        first={"rank_section_timeouts": {"step": 600.0, "eval": 5.0, "save": 6.0}},
        rank_section_timeouts={"step": 600.0, "save": 6.0},
    )
    assert "different sections (this one: ['eval', 'save', 'step'])" in results[0]["error"]
    assert "different sections (this one: ['save', 'step'])" in results[1]["error"]
