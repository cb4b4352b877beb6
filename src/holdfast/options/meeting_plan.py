"""Where and how launchers of a job meet, from command line and environment. Pure.

Imported only for jobs of several nodes: the machines it configures cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.pure.wording import nearest
from holdfast.errors import ConfigError
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.job.link.meeting_place import MeetingPlace, OtherBackend
from holdfast.job.pure.assign import AssignmentError
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.infra_rank import infra_rank, node_domain
from holdfast.job.pure.job_secret import SECRET, SHORT, without_secret
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.workload import MIXED, UNNAMED, Workload, argument_digests, text_digest
from holdfast.net.pure.address import Endpoint, EndpointError, bare_host, parse_endpoint
from holdfast.options.cluster_env import KUBERNETES, Cluster, read_cluster, slurm_ids
from holdfast.options.forms import conf_seconds, read_rdzv_conf
from holdfast.options.option import UsageError
from holdfast.options.values import Unacceptable

if TYPE_CHECKING:
    from holdfast.options.machine import Machine

OUR_BACKENDS = ("c10d", "static")
"""With these, the launcher at the endpoint leads; all others are backends of torch."""
DEFAULT_PORT = 29500
"""Of the endpoint, where none is given; torchrun's."""
_READ_S = 60.0
_CONF_WITH_EFFECT = (
    "is_host",
    "read_timeout",
    "join_timeout",
    "timeout",
    "last_call_timeout",
    "keep_alive_timeout",
    "grow_cooldown",
    "secret",
    MIXED,
)
_CONF_OF_OTHERS = (
    *("close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"),
    *("store_type", "rank"),
)
"""Keys of ``--rdzv-conf`` that have an effect under torchrun or nvidia-resiliency-ext alone."""


@dataclass(frozen=True)
class MeetingPlan:
    """Where and how the launchers of a job meet.

    Attributes:
        place: Where they meet, and the secret by which they know each other.
        infra_rank, infra_is_place: Number of this node from the scheduler; None: there is none.
        domain: NVLink domain of this node, for --ft-segment; None: asked of its GPUs.
        last_call_s, grow_cooldown_s, launchers: See :class:`.Rules`.
        is_mixed: Nodes of the job run different programs, on purpose.
    """

    place: MeetingPlace
    infra_rank: int | None
    infra_is_place: bool
    domain: str | None
    nodes: NodePolicy
    last_call_s: float
    grow_cooldown_s: float
    launchers: int | None
    pace: Pace
    is_mixed: bool = False
    warnings: tuple[str, ...] = ()


def make_meeting_plan(
    args: Any, environ: Mapping[str, str], config: FaultToleranceConfig, nodes: tuple[int, int]
) -> MeetingPlan:
    """Resolve everything that concerns other launchers.

    Raises:
        UsageError: Something on the command line or in the environment cannot be used.
    """
    try:
        conf = read_rdzv_conf(args.rdzv_conf)
        secret = conf.pop("secret", None) or environ.get(SECRET) or None
        cluster = read_cluster(environ)
        number = infra_rank(environ) if config.use_infra_group_rank else None
        numbered = args.node_rank if "node_rank" in args.origins else None
        pod = cluster.node_rank if cluster and cluster.scheduler == KUBERNETES else None
        host, port = _endpoint(args, cluster)
        is_tcp = args.rdzv_backend in OUR_BACKENDS
        timeout_s = conf_seconds(conf, "timeout", Pace.join_timeout_s)
        join_s = conf_seconds(conf, "join_timeout", timeout_s)
        pace = Pace.of(conf_seconds(conf, "keep_alive_timeout", Pace.silence_s), join_s)
        return MeetingPlan(
            place=MeetingPlace(
                host,
                port,
                is_host=_is_host(args, conf, numbered, pod),
                connect_s=conf_seconds(conf, "read_timeout", max(_READ_S, join_s)),
                run_id=args.rdzv_id,
                other=None
                if is_tcp
                else OtherBackend(
                    args.rdzv_backend,
                    args.rdzv_endpoint,
                    *nodes,
                    args.local_addr,
                    conf,
                ),
                silence_s=pace.silence_s,
                secret=secret,
                local_addr=args.local_addr,
            ),
            infra_rank=number.rank if number else pod if numbered is None else numbered,
            infra_is_place=number.is_place if number else True,
            domain=node_domain(environ) if config.segment is not None else None,
            nodes=NodePolicy(
                min_nodes=nodes[0],
                max_nodes=nodes[1],
                use_infra_group_rank=config.use_infra_group_rank,
                active=args.ft_active_nodes,
                segment=config.segment,
            ),
            last_call_s=conf_seconds(conf, "last_call_timeout", Rules.first_last_call_s),
            grow_cooldown_s=conf_seconds(conf, "grow_cooldown", Rules.grow_cooldown_s),
            launchers=max(cluster.nodes, nodes[1]) if cluster and cluster.nodes else None,
            pace=pace,
            is_mixed=bool(_flag(conf, MIXED)),
            warnings=(
                *(_unknown_keys(conf) if is_tcp else ()),
                *_doubts_about(secret),
                *_only_here(args, cluster, host, port),
            ),
        )
    except (ConfigError, AssignmentError) as error:
        raise UsageError(str(error)) from None
    except (Unacceptable, ValueError) as error:
        shown = without_secret(args.rdzv_conf)
        raise UsageError(f"--rdzv-conf: {shown!r} cannot be used; {error}") from None


def own_workload(
    args: Any, kind: str, meeting: MeetingPlan, environ: Mapping[str, str], machine: Machine
) -> Workload:
    """The workload of a command line, which launchers of a job compare; reads the script once.

    ``kind``: ``script``, ``module``, ``program`` or ``run-path``.
    """
    script: str = args.training_script
    # A module has no path before it is imported; a program found on PATH is no file of the job's.
    has_file = kind != "module" and not (kind == "program" and "/" not in script)
    contents = (machine.script_digest(script, program=kind == "program") or "") if has_file else ""
    job, step = slurm_ids(environ)
    return Workload(
        kind="script" if kind == "run-path" else kind,  # another way to run the same file
        name=Path(script).name or script,
        contents=contents,
        path=text_digest(machine.absolute(script)) if contents else "",
        arguments=argument_digests(args.training_script_args),
        min_nodes=meeting.nodes.min_nodes,
        max_nodes=meeting.nodes.max_nodes,
        max_restarts=args.max_restarts,
        is_named=args.rdzv_id not in UNNAMED,
        is_mixed=meeting.is_mixed,
        slurm_job=job,
        slurm_step=step,
    )


def _endpoint(args: Any, cluster: Cluster | None) -> tuple[str, int]:
    """Host and port of the endpoint: as given, else the scheduler's first node, else torchrun's."""
    text = args.rdzv_endpoint
    if args.rdzv_backend not in OUR_BACKENDS:
        try:  # only for the choice of this node's address
            service = parse_endpoint(text)
        except EndpointError:
            return "", DEFAULT_PORT
        return service.host, service.port or DEFAULT_PORT
    if not text:
        host = bare_host(args.master_addr)
        if cluster and "master_addr" not in args.origins:
            if cluster.scheduler == KUBERNETES and cluster.first_host is None:
                raise UsageError(
                    "Kubernetes does not say where the first pod is; set JOB_SERVICE_NAME to the "
                    "name of the job's headless service, or give --rdzv-endpoint"
                )
            host = cluster.first_host or host
        return host, args.master_port or DEFAULT_PORT
    try:
        endpoint = parse_endpoint(text)
    except EndpointError as error:
        raise UsageError(
            f"--rdzv-endpoint: {text!r} cannot be used; {error}, the same on all nodes"
        ) from None
    return endpoint.host, endpoint.port or args.master_port or DEFAULT_PORT


def _only_here(args: Any, cluster: Cluster | None, host: str, port: int) -> Iterator[str]:
    """The default address is this host's own, which launchers on other hosts cannot reach."""
    given = args.rdzv_endpoint or "master_addr" in args.origins
    if not (given or args.rdzv_backend not in OUR_BACKENDS or (cluster and cluster.first_host)):
        yield (
            f"no --rdzv-endpoint is given: launchers meet at {Endpoint(host, port)}, which only "
            "launchers on this host can reach. Give --rdzv-endpoint HOST:PORT, the same on all "
            "nodes"
        )


def _is_host(
    args: Any, conf: Mapping[str, str], numbered: int | None, pod: int | None
) -> bool | None:
    """As given; by torchrun's static rule node 0 is the one at the master's address.

    So is Kubernetes' first pod; while it starts, its name may not lead to it yet.
    """
    said = _flag(conf, "is_host")
    if said is not None or args.rdzv_endpoint:
        return said
    if numbered is not None:
        return numbered == 0
    return pod == 0 if pod is not None and "master_addr" not in args.origins else None


def _doubts_about(secret: str | None) -> Iterator[str]:
    if secret is not None and len(secret) < SHORT:
        yield (
            f"the job's secret ({SECRET} or --rdzv-conf secret=) has {len(secret)} characters, "
            f"which can be guessed; use {SHORT} or more at random: openssl rand -hex 32"
        )


def _unknown_keys(conf: Mapping[str, str]) -> Iterator[str]:
    """One line for each key without meaning here; jobs that carry foreign ones keep running."""
    for key in conf:
        if key not in (*_CONF_WITH_EFFECT, *_CONF_OF_OTHERS):
            likely = nearest(key, _CONF_WITH_EFFECT)
            meant = f"; did you mean {likely}?" if likely else ""
            yield f"--rdzv-conf: {key} is not known and has no effect{meant}"


def _flag(conf: Mapping[str, str], key: str) -> bool | None:
    text = conf.get(key)
    if text is None:
        return None
    if text.lower() not in ("0", "1", "true", "false"):
        raise ValueError(f"{key}={text} is neither 0 nor 1")
    return text.lower() in ("1", "true")
