"""Number of nodes, of this node, and the first host, as Slurm or Kubernetes set them. Pure.

Slurm (there is a ``SLURM_JOB_ID``). A job step may have fewer nodes than its job, so its own
variables go first::

    nodes        SLURM_STEP_NUM_NODES, SLURM_NNODES, SLURM_JOB_NUM_NODES
    node rank    SLURM_NODEID
    first host   SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST
    launchers    SLURM_STEP_TASKS_PER_NODE, SLURM_NTASKS_PER_NODE: one per node is right

Kubernetes (there is a ``JOB_COMPLETION_INDEX``, which an Indexed Job sets by itself; the others are
set by the manifest, as those under examples/deploy do)::

    nodes        JOB_COMPLETIONS, times REPLICATED_JOB_REPLICAS in a JobSet
    node rank    JOB_COMPLETION_INDEX, plus JOB_INDEX * JOB_COMPLETIONS in a JobSet
    first host   <JOBSET_NAME>-<REPLICATED_JOB_NAME>-0-0.<JOBSET_NAME>, or, without a JobSet,
                 <job>-0.<JOB_SERVICE_NAME>, the job's name being that of HOSTNAME less the index

Operators that set ``PET_*`` need none of this: those are the launcher's options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from holdfast.base.pure.wording import count
from holdfast.errors import ConfigError
from holdfast.job.pure.infra_rank import whole_number

SLURM: Final = "Slurm"
KUBERNETES: Final = "Kubernetes"
_OF_SEVERAL_JOBS = (
    "SLURM_HET_SIZE",
    "SLURM_PACK_SIZE",
    "SLURM_ARRAY_TASK_ID",
    "CROSS_SLURM_PROCID",
)
_START = "srun --ntasks-per-node=1 ft_launcher"


@dataclass(frozen=True)
class Cluster:
    """Facts from a scheduler; ``None``: it does not say.

    Attributes:
        scheduler: ``Slurm`` or ``Kubernetes``.
        nodes: How many nodes the job (Slurm: this step of it) has.
        node_rank: Number of this node, from 0.
        first_host: Where node 0 runs.
        launchers_per_node: As many as Slurm starts; more than 1 is a mistake nearly always.
        on_every_node: The scheduler itself started this launcher, as it did those of other nodes;
            False: it runs in a Slurm batch script, once.
    """

    scheduler: Literal["Slurm", "Kubernetes"]
    nodes: int | None = None
    node_rank: int | None = None
    first_host: str | None = None
    launchers_per_node: int = 1
    on_every_node: bool = True
    notes: tuple[str, ...] = ()


def read_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """The scheduler's facts in an environment; ``None``: no known scheduler.

    Raises:
        ConfigError: A variable has a value that cannot be used, or two contradict each other.
    """
    if environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID"):
        return _slurm(environ)
    if environ.get("JOB_COMPLETION_INDEX"):
        return _kubernetes(environ)
    return None


def nodes_by_default(cluster: Cluster | None) -> int:
    """Number of nodes for a command line that names none.

    Raises:
        ConfigError: A job of that many nodes would not come about.
    """
    if cluster is None or cluster.nodes is None:
        return 1
    if not cluster.on_every_node and cluster.nodes > 1:
        raise ConfigError(
            f"Slurm gave this job {count(cluster.nodes, 'node')}, but this launcher would train "
            f"on its own node alone; start one launcher on each: {_START}. If one node is meant, "
            "give --nnodes 1 or --standalone"
        )
    if cluster.on_every_node and cluster.launchers_per_node > 1:
        raise ConfigError(
            f"Slurm starts {cluster.launchers_per_node} launchers on a node; one launcher starts "
            f"all ranks of its node: {_START}, and --nproc-per-node for the ranks. If this is "
            "meant, give --nnodes with the number of launchers"
        )
    return cluster.nodes


# ------------------------------------------------------------------ Slurm
def slurm_ids(environ: Mapping[str, str]) -> tuple[str, str]:
    """Slurm's ids of the job and of the step that it started this launcher in; empty: not known.

    The step's holds how often the job was queued again; it is empty for a step of one task, where
    it proves nothing of two launchers: both may have been started by hand in an allocation's shell.
    Both are empty where one job may be several of Slurm's: components of a heterogeneous
    job, tasks of an array, nodes numbered over several jobs.
    """
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if not job or any(environ.get(name) for name in _OF_SEVERAL_JOBS):
        return "", ""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if not step or tasks == "1":
        return job, ""
    return job, f"{step}.{environ.get('SLURM_RESTART_COUNT') or 0}"


def _slurm(environ: Mapping[str, str]) -> Cluster:
    of_job = _first_number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    nodes = _first_number(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    in_step = bool(environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_STEP_NODELIST"))
    first_host = None
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if text := environ.get(name, "").strip():
            first_host = next(hosts(text, name))
            if nodes is None:
                nodes = sum(math.prod(map(len, part)) for part in _parts(text, name))
            break
    notes = []
    if in_step and nodes is not None and of_job is not None and nodes < of_job:
        notes.append(f"this Slurm step has {nodes} of the job's {of_job} nodes")
    return Cluster(
        SLURM,
        nodes,
        whole_number(environ, "SLURM_NODEID"),
        first_host,
        launchers_per_node=_launchers_per_node(environ),
        on_every_node=in_step,
        notes=tuple(notes),
    )


def _launchers_per_node(environ: Mapping[str, str]) -> int:
    """The most on any node; of ``2(x3),1`` that is 2."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        if text := environ.get(name, "").strip():
            if not re.fullmatch(r"[0-9]+(\(x[0-9]+\))?(,[0-9]+(\(x[0-9]+\))?)*", text):
                raise ConfigError(
                    f"{name}: {text!r} cannot be used; it takes numbers as in 2(x3),1"
                )
            return max(int(part.partition("(")[0]) for part in text.split(","))
    return 1


def _first_number(environ: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if (number := whole_number(environ, name)) is not None:
            return number
    return None


def hosts(nodelist: str, source: str = "node list") -> Iterator[str]:
    """Hosts of a Slurm list such as ``gpu[01-04,07],login1``, in its order, one at a time.

    Raises:
        ConfigError: The text is no such list; names ``source``.
    """
    for part in _parts(nodelist, source):
        for pieces in product(*part):
            yield "".join(pieces)


_Choices = list[str]
_MOST_HOSTS = 1_000_000
"""Of one range; more is a mistake and would fill memory."""


def _parts(nodelist: str, source: str) -> list[list[_Choices]]:
    """A part for each comma outside brackets; each lists the choices at its places, in order."""
    text = nodelist.strip()
    name = r"(?:[^][,\s]|\[[^][\s]+\])+"
    if not re.fullmatch(f"{name}(?:,{name})*", text):
        raise _unreadable(source, nodelist)
    return [
        [
            _choices(piece[1:-1], source, nodelist) if piece.startswith("[") else [piece]
            for piece in re.findall(r"[^][]+|\[[^]]+\]", part)
        ]
        for part in re.findall(name, text)
    ]


def _choices(ranges: str, source: str, nodelist: str) -> _Choices:
    """``01-03,7`` are 01, 02, 03, 7: as wide as the first number is written."""
    found: _Choices = []
    for one in ranges.split(","):
        bounds = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", one)
        if bounds is None:
            raise _unreadable(source, nodelist)
        low, high = bounds[1], bounds[2] or bounds[1]
        numbers = range(int(low), int(high) + 1)
        if not 0 < len(numbers) <= _MOST_HOSTS:
            raise _unreadable(source, nodelist)
        found.extend(f"{number:0{len(low)}d}" for number in numbers)
    return found


def _unreadable(source: str, nodelist: str) -> ConfigError:
    return ConfigError(
        f"{source}: {nodelist!r} cannot be used; it takes hosts as in gpu[01-04,07],b"
    )


# ------------------------------------------------------------------ Kubernetes
def _kubernetes(environ: Mapping[str, str]) -> Cluster:
    index = whole_number(environ, "JOB_COMPLETION_INDEX")
    assert index is not None  # read_cluster has seen it
    pods = whole_number(environ, "JOB_COMPLETIONS")
    job_set = environ.get("JOBSET_NAME", "").strip()
    jobs = (whole_number(environ, "REPLICATED_JOB_REPLICAS") or 1) if job_set else 1
    job = (whole_number(environ, "JOB_INDEX") or 0) if job_set else 0
    for name, number, limit in (
        ("JOB_COMPLETION_INDEX", index, pods),
        ("JOB_INDEX", job, jobs),
    ):
        if limit is not None and number >= limit:
            raise ConfigError(f"{name}: {number} cannot be used; there are {limit}, counted from 0")
    note = (
        f"pod {index} of an Indexed Job, and JOB_COMPLETIONS does not say of how many; a job of "
        "more than one pod needs that variable, or --nnodes"
    )
    return Cluster(
        KUBERNETES,
        nodes=None if pods is None else pods * jobs,
        node_rank=index if job == 0 else None if pods is None else job * pods + index,
        first_host=_first_pod(environ, job_set, index),
        notes=(note,) if pods is None else (),
    )


def _first_pod(environ: Mapping[str, str], job_set: str, index: int) -> str | None:
    replicated_job = environ.get("REPLICATED_JOB_NAME", "").strip()
    if job_set and replicated_job:
        return f"{job_set}-{replicated_job}-0-0.{job_set}"
    service = environ.get("JOB_SERVICE_NAME", "").strip()
    job_name, dash, own_index = environ.get("HOSTNAME", "").strip().rpartition("-")
    if service and dash and own_index == str(index):
        return f"{job_name}-0.{service}"
    return None
