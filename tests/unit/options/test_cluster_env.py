"""What Slurm and Kubernetes say about a job, and jobs of one node by accident."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.options.cluster_env import Cluster, hosts, nodes_by_default, read_cluster

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu[01-04]"}
STEP = {
    **JOB,
    "SLURM_NNODES": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu[01-04]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
}
POD = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-3"}
JOB_SET = {"JOBSET_NAME": "llm", "REPLICATED_JOB_NAME": "workers", "HOSTNAME": "llm-workers-1-3"}


# ------------------------------------------------------------------ Slurm
@pytest.mark.parametrize(
    ("nodelist", "expected"),
    [
        ("login1", "login1"),
        ("gpu[01-04,07],login1", "gpu01 gpu02 gpu03 gpu04 gpu07 login1"),
        ("a,b-1,c.example.org", "a b-1 c.example.org"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[1,3]-ib", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib"),
        ("[1-2]", "1 2"),
        (" n1 ", "n1"),
    ],
)
def test_a_node_list_is_expanded_as_slurm_does(nodelist: str, expected: str) -> None:
    """Without asking scontrol, which a container may not have."""
    assert " ".join(hosts(nodelist)) == expected


@pytest.mark.parametrize(
    "nodelist",
    [
        *("", ",", "a,", "a b", "n[1-2", "n1-2]", "n[]", "n[2-1]", "n[a-b]", "n[1-2:2]", "n[[1]]"),
        "n[1-99999999999]",
        "x" * 5000 + " y",
    ],
)
def test_a_node_list_that_is_none_is_named_with_its_variable(nodelist: str) -> None:
    """At once, however long it is."""
    with pytest.raises(ConfigError, match=r"\ASLURM_JOB_NODELIST: '.*' cannot be used"):
        next(hosts(nodelist, "SLURM_JOB_NODELIST"))


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), min_size=1, max_size=5))
def test_ranges_hold_what_they_say(ranges: list[tuple[int, int]]) -> None:
    """Against the plain way to count."""
    text = ",".join(f"{low:03}-{low + more:03}" for low, more in ranges)

    assert list(hosts(f"n[{text}],z")) == [
        *(f"n{k:03}" for low, more in ranges for k in range(low, low + more + 1)),
        "z",
    ]


def test_a_step_of_srun_tells_all() -> None:
    """The usual way: srun --ntasks-per-node=1 ft_launcher."""
    assert read_cluster(STEP) == Cluster("Slurm", nodes=4, node_rank=2, first_host="gpu01")


def test_a_step_may_be_smaller_than_its_job() -> None:
    """Its own nodes count, and where it starts; a note says so."""
    smaller = {**STEP, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04]"}

    cluster = read_cluster(smaller)

    assert cluster is not None
    assert (cluster.nodes, cluster.first_host) == (2, "gpu03")
    assert cluster.notes == ("this Slurm step has 2 of the job's 4 nodes",)


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({"SLURM_NNODES": "3"}, 3),
        ({"SLURM_JOB_NUM_NODES": "5"}, 5),
        ({"SLURM_JOB_NODELIST": "gpu[01-04,07],r[1-2]n[1-3]"}, 11),
        ({"SLURM_NODELIST": "a,b"}, 2),
        ({}, None),
    ],
)
def test_the_number_of_nodes_is_found_under_any_of_its_names(
    environ: dict[str, str], nodes: int | None
) -> None:
    """Failing all, the list of nodes is counted."""
    cluster = read_cluster({"SLURM_JOB_ID": "7", **environ})

    assert cluster is not None
    assert cluster.nodes == nodes


@pytest.mark.parametrize(
    ("environ", "launchers"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_NTASKS_PER_NODE": "8"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 2),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({}, 1),
    ],
)
def test_launchers_per_node_are_those_of_the_step(environ: dict[str, str], launchers: int) -> None:
    """What #SBATCH asked for is overruled by srun."""
    cluster = read_cluster({"SLURM_JOB_ID": "7", **environ})

    assert cluster is not None
    assert cluster.launchers_per_node == launchers


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"SLURM_NNODES": "four"}, "SLURM_NNODES: 'four' cannot be used"),
        ({"SLURM_NODEID": "-1"}, "SLURM_NODEID: '-1' cannot be used"),
        ({"SLURM_JOB_NODELIST": "n[1"}, "SLURM_JOB_NODELIST: 'n[1' cannot be used"),
        ({"SLURM_NTASKS_PER_NODE": "1x4"}, "SLURM_NTASKS_PER_NODE: '1x4' cannot be used"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(environ: dict[str, str], text: str) -> None:
    """The variable, its value, and what it takes."""
    with pytest.raises(ConfigError) as e:
        read_cluster({"SLURM_JOB_ID": "7", **environ})

    assert text in str(e.value)


# ------------------------------------------------------------------ jobs of one by accident
def test_without_a_scheduler_a_job_has_one_node() -> None:
    """As under torchrun, and nothing is wrong with that."""
    assert read_cluster({"PATH": "/bin"}) is None
    assert nodes_by_default(None) == 1


def test_the_scheduler_says_how_many_nodes_a_job_has() -> None:
    """Where the command line does not."""
    assert nodes_by_default(read_cluster(STEP)) == 4
    assert nodes_by_default(read_cluster({"SLURM_JOB_ID": "7"})) == 1


def test_a_launcher_in_a_batch_script_of_four_nodes_is_refused() -> None:
    """Without srun it would wait for three launchers that nobody starts, or train alone."""
    with pytest.raises(ConfigError) as e:
        nodes_by_default(read_cluster(JOB))

    assert str(e.value) == (
        "Slurm gave this job 4 nodes, but this launcher would train on its own node alone; start "
        "one launcher on each: srun --ntasks-per-node=1 ft_launcher. If one node is meant, "
        "give --nnodes 1 or --standalone"
    )


def test_a_batch_script_on_one_node_needs_no_srun() -> None:
    """Even if it reserved a task per GPU: this is the only launcher."""
    one = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "8"}

    assert nodes_by_default(read_cluster(one)) == 1


@pytest.mark.parametrize("nodes", ["1", "4"])
def test_a_launcher_per_gpu_is_refused(nodes: str) -> None:
    """Each of the eight would start eight ranks."""
    eight = {**STEP, "SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}

    with pytest.raises(
        ConfigError, match=r"Slurm starts 8 launchers on a node; .*--nproc-per-node"
    ):
        nodes_by_default(read_cluster(eight))


@pytest.mark.parametrize("nodes", [1, None])
def test_a_job_of_one_is_refused_only_where_the_scheduler_says_more(nodes: int | None) -> None:
    """In a batch script."""
    assert nodes_by_default(Cluster("Slurm", nodes=nodes, on_every_node=False)) == 1


# ------------------------------------------------------------------ Kubernetes
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(
            {"JOB_COMPLETIONS": "4", "JOB_SERVICE_NAME": "svc"},
            {"nodes": 4, "node_rank": 3, "first_host": "train-0.svc"},
            id="Indexed Job",
        ),
        pytest.param(
            {"JOB_COMPLETIONS": "4", **JOB_SET},
            {"nodes": 4, "node_rank": 3, "first_host": "llm-workers-0-0.llm"},
            id="JobSet of one job",
        ),
        pytest.param(
            {"JOB_COMPLETIONS": "4", **JOB_SET, "JOB_INDEX": "1", "REPLICATED_JOB_REPLICAS": "2"},
            {"nodes": 8, "node_rank": 7, "first_host": "llm-workers-0-0.llm"},
            id="JobSet of two jobs",
        ),
        pytest.param(
            {"JOB_COMPLETIONS": "4", "JOB_SERVICE_NAME": "svc", "HOSTNAME": "train-3-x7k2p"},
            {"nodes": 4, "node_rank": 3, "first_host": None},
            id="pod without a name of its own",
        ),
        pytest.param(
            {"JOB_COMPLETIONS": "4", "JOB_INDEX": "5"},
            {"nodes": 4, "node_rank": 3, "first_host": None},
            id="no JobSet, no job index",
        ),
    ],
)
def test_pods_know_their_place(environ: dict[str, str], expected: dict[str, Any]) -> None:
    """From what an Indexed Job sets by itself and our manifests set besides."""
    assert read_cluster({**POD, **environ}) == Cluster("Kubernetes", **expected)


def test_a_pod_that_knows_no_number_of_pods_says_so() -> None:
    """Kubernetes does not tell; of a second job in a JobSet not even the node's rank is known."""
    alone = read_cluster(POD)
    assert alone is not None
    assert (alone.nodes, alone.node_rank, nodes_by_default(alone)) == (None, 3, 1)
    assert alone.notes[0].startswith("pod 3 of an Indexed Job, and JOB_COMPLETIONS does not say")

    second = read_cluster({**POD, **JOB_SET, "JOB_INDEX": "1", "REPLICATED_JOB_REPLICAS": "2"})
    assert second is not None
    assert second.node_rank is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"JOB_COMPLETIONS": "3"}, "JOB_COMPLETION_INDEX: 3 cannot be used; there are 3"),
        ({**JOB_SET, "JOB_INDEX": "1"}, "JOB_INDEX: 1 cannot be used; there are 1"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX: 'x' cannot be used"),
    ],
)
def test_pods_beyond_the_number_of_pods_are_refused(environ: dict[str, str], text: str) -> None:
    """The manifest contradicts itself; two nodes would have one number."""
    with pytest.raises(ConfigError) as e:
        read_cluster({**POD, **environ})

    assert text in str(e.value)
