"""Programs in the shapes that existing clients have, by the names that they import."""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

import nvidia_resiliency_ext
import public_names
from holdfast.net.port import ReservedPort
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvidia_resiliency_ext.fault_tolerance.utils import get_infrastructure_rank
from nvidia_resiliency_ext.shared_utils import health_check
from tests.real.harness import Launcher
from tests.real.ranks import SIGKILLED, RankStarter
from tests.waiting import BOUND_S, SCALE, until

LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
COMPAT = {"PYTHONPATH": str(Path(nvidia_resiliency_ext.__file__).parents[1])}

SECTIONS = """
import json, os, sys, time, types

# Megatron-LM's arguments, where the client looks for the iteration.
args = types.SimpleNamespace(iteration=0, curr_iteration=0)
for name in ("megatron", "megatron.training", "megatron.training.global_vars"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["megatron.training.global_vars"].get_args = lambda: args

import light_torch
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

OUT, CYCLE = os.environ["OUT"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STATE, CHECKPOINT = f"{OUT}/ft_state.json", f"{OUT}/iteration"
ITERATIONS, SAVE_EVERY, HANGS_AT, WARMUP = 12, 5, 7, 2

client = RankMonitorClient()  # in the first lines, long before there is a process group
client.init_workload_monitoring(num_warmup_iters=WARMUP)
if os.path.exists(STATE):
    client.load_state_dict(json.load(open(STATE)))
client.start_section("setup")

dist.init_process_group("gloo")
was_loaded = os.path.exists(CHECKPOINT)
if was_loaded:
    args.iteration = args.curr_iteration = int(open(CHECKPOINT).read())
first, is_in_setup, seen = args.iteration, True, []

def all_ranks_sum():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return int(ones.item())

def update_timeouts(*, is_last):
    chosen = ["checkpointing"]
    if was_loaded:
        chosen.append("setup")
    if args.curr_iteration - first >= 3:
        chosen.append("step")
    is_outside = is_last and {"setup", "step"} <= set(chosen)
    client.calculate_and_set_section_timeouts(
        selected_sections=chosen, calc_out_of_section=is_outside
    )
    if dist.get_rank() == 0:
        json.dump(client.state_dict(), open(STATE, "w"))

def save():
    client.start_section("checkpointing")
    all_ranks_sum()
    if dist.get_rank() == 0:
        open(CHECKPOINT, "w").write(str(args.curr_iteration))
    client.end_section("checkpointing")

while args.curr_iteration < ITERATIONS:
    if is_in_setup:
        client.end_section("setup")
        is_in_setup = False
    is_warm = args.curr_iteration - first >= WARMUP
    if is_warm:
        client.start_section("step")
    if CYCLE == 0 and args.curr_iteration == HANGS_AT and dist.get_rank() == 1:
        time.sleep(1000)
    assert all_ranks_sum() == dist.get_world_size()
    if is_warm:
        client.end_section("step")
    args.curr_iteration += 1
    if args.curr_iteration % SAVE_EVERY == 0:
        save()
        update_timeouts(is_last=False)
update_timeouts(is_last=True)
if dist.get_rank() == 0:
    print(f"began at {first}, ended at {args.curr_iteration}", flush=True)
client.end_all_sections()
client.shutdown_workload_monitoring()
dist.destroy_process_group()
"""


def test_a_training_with_sections_is_found_hung_and_goes_on_from_its_checkpoint(
    ft: Launcher,
) -> None:
    """As Megatron-LM does: sections of its own, limits chosen one by one and kept as JSON."""
    limits = "setup:60,step:60,checkpointing:60"
    job = ft.start(
        *("--nproc_per_node", "2", "--nnodes", "1", "--max-restarts=3"),
        f"--ft-param-rank_section_timeouts={limits}",
        *("--ft-param-rank_out_of_section_timeout=60", f"--ft-learned-timeout-floor={3 * SCALE}"),
        "--ft-warm-standby=false",
        ft.script(SECTIONS),
        module=LAUNCHER,
        env=COMPAT,
    )
    assert job.wait(2 * BOUND_S) == 0, job.stderr
    assert job.said(r"rank 1 .*`all_reduce`\n.*incident 1 of cycle 0, evidence of 2"), job.stderr
    ended = r"killed ranks? .* \(section 'step': .*\)(, stopped rank [01])?; restart 1 of 3 in"
    assert job.said(ended), job.stderr
    assert "began at 5, ended at 12" in job.stdout
    learned = json.loads((job.folder / "ft_state.json").read_text())["current_timeouts"]["section"]
    assert learned["calculated_sections"] == ["checkpointing", "step"], "before the restart"
    assert (learned["section"]["setup"], learned["out_of_section"]) == (60.0, 60.0)


IN_PLACE = """
sys.path.insert(0, "{compat}")
from typing import Any, Optional
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.nested_restarter import *

HOST = RANK // 2  # in this test all are on one
PORT = int(os.environ["MASTER_PORT"])

# Megatron-LM's own store, made once, on the port after the master's; the Wrapper's is the next one.
own_store = dist.TCPStore(
    os.environ["MASTER_ADDR"], PORT + 1, int(os.environ["WORLD_SIZE"]), RANK == 0,
    timeout=seconds(30), wait_for_workers=False,
)

CallWrapper = Any  # as where the package may be missing

def pretrain(model, inprocess_call_wrapper: Optional[CallWrapper] = None):
    import torch.cuda
    call = inprocess_call_wrapper
    note(iteration=call.iteration, active=os.environ["RANK"], world=os.environ["WORLD_SIZE"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(str(call.iteration), own_store), rank=rank, world_size=world
    )
    assert all_reduce() == world
    if call.iteration == 0:
        if RANK == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce()
    call.ping()
    dist.destroy_process_group()
    return model

wrapped = inprocess.Wrapper(
    store_kwargs=dict(timeout=seconds(60), port=PORT + 2),
    initialize=inprocess.Compose(
        inprocess.initialize.RetryController(max_iterations=4, min_world_size=2),
        NestedRestarterHandlingCompleted(),
    ),
    abort=inprocess.Compose(
        inprocess.abort.AbortTransformerEngine(),
        inprocess.abort.AbortTorchDistributed(),
        NestedRestarterHandlingStarting(),
    ),
    completion=NestedRestarterFinalized(),
    terminate=NestedRestarterAborted(),
    finalize=inprocess.finalize.ThreadedFinalize(
        timeout=seconds(10), fn=torch.cuda.empty_cache
    ),
    health_check=inprocess.Compose(
        inprocess.health_check.CudaHealthCheck(timeout=seconds(10)),
        inprocess.health_check.FaultCounter(max_rank_faults=2),
    ),
    rank_assignment=inprocess.rank_assignment.Tree([
        inprocess.rank_assignment.Layer(
            min_ranks=2, max_ranks=2, flag=inprocess.rank_assignment.LayerFlag.RESERVE
        ),
        inprocess.rank_assignment.Layer(
            min_ranks=1, max_ranks=1, key_or_fn=lambda _: f"host{HOST}",
            flag=inprocess.rank_assignment.LayerFlag.RESERVE,
        ),
    ]),
    last_call_wait=seconds(0.1),
    **QUICK,
)(pretrain)
run(wrapped, "model")
"""


def test_a_spare_of_the_same_host_takes_the_place_of_a_lost_rank(ranks: RankStarter) -> None:
    """As Megatron-LM does: a tree of hosts, stores on the two ports after the master's, no CUDA."""
    job = ranks(4, IN_PLACE.replace("{compat}", COMPAT["PYTHONPATH"]), LOCAL_RANK="0")
    assert job.wait() == [0, 0, SIGKILLED, 0], [job.output(rank) for rank in range(4)]
    first, second = ({"iteration": n, "world": "2"} for n in (0, 1))
    is_0, is_1, returned = {"active": "0"}, {"active": "1"}, {"returned": "model"}
    assert [job.notes(rank) for rank in range(4)] == [
        [first | is_0, second | is_0, returned],
        [{"returned": None}],  # the spare of the other host
        [first | is_1],
        [second | is_1, returned],
    ]
    told = re.findall(r"\[NestedRestarter\] name=\[InProcess\] state=(.*)", job.output(0))
    stages = ("handling stage=starting", "handling stage=completed")
    assert told == ["initialize", *stages, "finalized"]


COMPOSED = """
sys.path.insert(0, "{compat}")
from nvidia_resiliency_ext import inprocess

class AbortCheckpoint(inprocess.abort.Abort):
    def __call__(self, frozen_state):
        import nvidia_resiliency_ext.checkpointing.async_ckpt.core  # where this is not installed
        return frozen_state

class Noting(inprocess.abort.Abort):
    def __call__(self, frozen_state):
        note(aborted=frozen_state.iteration)
        return frozen_state

@inprocess.Wrapper(abort={abort}, **QUICK)
def train(call: inprocess.CallWrapper):
    dist.init_process_group("gloo")
    assert all_reduce() == 2
    if call.iteration == 0:
        if RANK == 1:
            raise ValueError("boom")
        all_reduce()
    dist.destroy_process_group()
    return call.iteration

run(train)
"""


@pytest.mark.parametrize(
    "abort",
    [
        "Compose(inprocess.abort.AbortTorchDistributed(), AbortCheckpoint(), Noting())",
        "Compose(Noting(), AbortCheckpoint())",
    ],
    ids=["before the leaf that frees the ranks", "and no leaf frees the ranks"],
)
def test_a_leaf_of_a_composed_abort_fails_and_the_ranks_are_freed(
    ranks: RankStarter, abort: str
) -> None:
    """As Megatron-LM's does, which imports a checkpointing module; the failure is in the log."""
    source = COMPOSED.replace("{compat}", COMPAT["PYTHONPATH"]).replace("{abort}", abort)
    job = ranks(2, source)
    assert job.wait() == [0, 0], [job.output(rank) for rank in range(2)]
    for rank in range(2):
        assert job.notes(rank) == [{"aborted": 0}, {"returned": 1}]
        assert job.said(rank, r"No module named 'nvidia_resiliency_ext.checkpointing")


SAYS = """
import os, signal, time

def test_it():
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)

if __name__ == "__main__":
    test_it()
    said = os.path.join(os.environ["OUT"], "said")
    if os.environ["RANK"] == "0":
        open(said, "w").close()
    elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while not os.path.exists(said):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
"""
MEGATRON = (
    "--nproc_per_node 2 --nnodes 1 --master_addr 127.0.0.1 --master_port {port} --node_rank 0 "
    "--log-dir logs --tee 0:3,7:3 --redirects 3 --max-restarts=3 "
)
BRIDGE = (
    "--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:{port} --nnodes=1 --nproc-per-node=2 "
    "--ft-rank_section_timeouts=setup:600,step:180 --ft-rank_out_of_section_timeout=300 "
    "--monitor-interval=5 --max-restarts=3 --ft-restart-policy=any-failed "
)
NEMO = (
    "--ignore-missing-fault-tol-cfg --fault-tol-cfg-path=/nowhere/ft.yaml --rdzv-backend c10d "
    "--rdzv-endpoint 127.0.0.1:{port} --rdzv-conf=is_host=1 --rdzv-id 77 --nnodes 1 "
    "--nproc-per-node 2 --node-rank 0 --tee 3 --max-restarts=20 --ft-restart-policy=min-healthy "
)


LINES = {
    "Megatron-LM": MEGATRON + "{script}",
    "Megatron-LM, without python": MEGATRON + "--no-python {python} -u {script}",
    "Megatron-Bridge": BRIDGE + "-m pytest -sqp no:cacheprovider {script}",
    "NeMo-Run and AWS": NEMO + "--no-python {python} {script}",
}


@pytest.mark.parametrize("client", LINES)
def test_a_launcher_line_of_a_client_runs_what_it_names(ft: Launcher, client: str) -> None:
    """Word for word, but for the sizes; output goes to where the client looks for it."""
    port = ReservedPort()
    words = LINES[client].format(port=port.number, script=ft.script(SAYS), python=sys.executable)
    job = ft.start(*words.split(), module=LAUNCHER, env=COMPAT)
    assert job.wait() == 0, job.stderr
    port.release()
    shown = job.stdout.splitlines()
    if "Megatron-LM" in client:
        assert shown == 2 * ["[default0]:rank 0 of 2"], "rank 1 is redirected, both are restarted"
        log = job.run_dir / "attempt_1" / "1" / "stdout.log"
        assert log.read_text() == "rank 1 of 2\n"
    elif client == "Megatron-Bridge":
        assert all(f"rank {rank} of 2" in job.stdout for rank in (0, 1))  # among pytest's dots
    else:
        both = ["[default0]:rank 0 of 2", "[default1]:rank 1 of 2"]
        assert sorted(shown) == sorted(2 * both), "no call of the Wrapper goes on without rank 1"


SAVES = """
import os, signal, sys, time

def save(*_):
    time.sleep(2)  # longer than the timeout
    open(os.environ["OUT"] + "/saved" + os.environ["RANK"], "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
if os.environ["RANK"] == "0":
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
open(os.environ["OUT"] + "/ready" + os.environ["RANK"], "w").close()
time.sleep(1000)
"""


def test_a_rank_without_a_client_writes_its_emergency_checkpoint_when_the_job_is_stopped(
    ft: Launcher,
) -> None:
    """The timeouts of the other rank's client have run out meanwhile."""
    job = ft.start(
        *("--nproc-per-node=2", "--log-dir=logs", "--ft-initial-rank-heartbeat-timeout=1.5"),
        ft.script(SAVES),
        module=LAUNCHER,
        env=COMPAT,
    )
    until(lambda: len(list(job.folder.glob("ready*"))) == 2, "both ranks are ready")
    job.signal(signal.SIGTERM)
    job.wait()
    assert sorted(file.name for file in job.folder.glob("saved*")) == ["saved0", "saved1"]
    assert not job.hung_ranks()


# ---------------------------------------------------------------- where Slurm says a node is
def placed(address: str, **more: str) -> int:
    slurm = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", **more}
    return get_infrastructure_rank({"SLURM_PROCID": "3", **slurm})


BLOCK = 10**10


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ("block02.node17", 2 * BLOCK + 17),
        ("BLOCK02.Node17", 2 * BLOCK + 17),
        ("rack1b2.n3", 12 * BLOCK + 3),
        ("b2.rack1-node03", 2 * BLOCK + 103),
        ("b2.rack2-node03", 2 * BLOCK + 203),
        ("0.0", 0),
    ],
)
def test_a_topology_address_orders_nodes_by_all_digits_of_each_half(
    address: str, number: int
) -> None:
    assert placed(address) == number


@pytest.mark.parametrize("address", ["b2", "b.n3", "b2.n", "s1.b2.n3", "rack.node"])
def test_a_topology_address_that_cannot_be_read_is_refused(address: str) -> None:
    """Two nodes could have one number."""
    with pytest.raises(RuntimeError, match="SLURM_TOPOLOGY_ADDR"):
        placed(address)


def test_nodes_of_other_topologies_are_numbered_by_slurms_process() -> None:
    assert placed("s1.s2.n3", SLURM_TOPOLOGY_ADDR_PATTERN="switch.switch.node") == 3
    assert placed("b1.n2", SLURM_TOPOLOGY_ADDR_PATTERN="Block.Node") == BLOCK + 2
    assert placed("b2.n7", SLURM_TOPOLOGY_NODES_PER_BLOCK="18") == 2 * 18 + 7


# ---------------------------------------------------------------- calls by keyword
SIGNATURES = [row for row in public_names.rows() if row[2].startswith("(")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of old places
@pytest.mark.parametrize(
    ("module", "name", "signature"), SIGNATURES, ids=[f"{row[0]}.{row[1]}" for row in SIGNATURES]
)
def test_every_public_name_takes_all_of_its_arguments_by_keyword(
    module: str, name: str, signature: str
) -> None:
    """As the documents name them."""
    if module.startswith(public_names.WITH_LIGHTNING) and not any(
        find_spec(package) for package in ("lightning", "pytorch_lightning")
    ):
        pytest.skip("needs Lightning")
    words = [word.strip().partition("=")[0] for word in signature[1:-1].split(", ")]
    me = [None] if words[0] == "self" else []
    keywords = {word: None for word in words if word and word != "self" and "*" not in word}
    found: Any = public_names.found(module, name)
    inspect.signature(found).bind(*me, **keywords)


def _file(folder: Path) -> str:
    path = str(folder / "ft.yaml")
    FaultToleranceConfig().to_yaml_file(cfg_path=path)
    return path


CALLS: dict[str, Callable[[Path], Any]] = {
    "MaxActiveWorldSize(max_active_world_size=)": lambda _: (
        inprocess.rank_assignment.MaxActiveWorldSize(max_active_world_size=2)
    ),
    "to_yaml_file(cfg_path=), from_yaml_file(cfg_path=)": lambda folder: (
        FaultToleranceConfig.from_yaml_file(cfg_path=_file(folder), ignore_not_recognized=False)
    ),
    "load_state_dict(state=)": lambda _: RankMonitorClient().load_state_dict(state={}),
    "Wrapper()(fn=)": lambda _: inprocess.Wrapper(enabled=False)(fn=print),
    "get_all_heartbeats(world_size=)": lambda _: _Store().get_all_heartbeats(world_size=2),
    "NodeHealthCheck(endpoint=, request_timeout_sec=)": lambda _: health_check.NodeHealthCheck(
        endpoint="/none", request_timeout_sec=1
    ),
    "NicHealthCheck(pci_topo_file=, link_down_path_template=)": lambda _: (
        health_check.NicHealthCheck(pci_topo_file=None, link_down_path_template=None)
    ),
    "set_nic_device(local_rank=)": lambda _: health_check.NicHealthCheck(
        device_index=None
    ).set_nic_device(local_rank=0),
    "Tree(layers=, world_size_filter=)": lambda _: inprocess.rank_assignment.Tree(
        layers=[
            inprocess.rank_assignment.Layer(
                min_ranks=1, max_ranks=2, key_or_fn="x", flag=inprocess.rank_assignment.LayerFlag(1)
            )
        ],
        world_size_filter=None,
    ),
    "RetryController(...)": lambda _: inprocess.initialize.RetryController(
        max_iterations=None, min_world_size=2, min_active_world_size=1
    ),
}


class _Store(HashStore, inprocess.store.StoreMixin):
    pass


@pytest.mark.parametrize("call", CALLS)
def test_arguments_have_the_names_that_clients_give_them(call: str, tmp_path: Path) -> None:
    CALLS[call](tmp_path)


def test_a_request_is_sent_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is no launcher that would take it."""
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    with pytest.raises(RuntimeError, match="FT_LAUNCHER_IPC_SOCKET"):
        RankMonitorClient().send_workload_control_request(
            req=WorkloadControlRequest(action=WorkloadAction.Continue, description="none")
        )
