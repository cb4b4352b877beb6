"""Findings from facts about a host and its network. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base.pure.wording import count
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.pure.address import Endpoint, Published, is_loopback
from holdfast.options.cluster_env import Cluster

DESCRIPTORS_OF_A_RANK = 12
"""Of the launcher for each rank: pipes, pidfd, a monitor's socket and listener, its page."""
DESCRIPTORS_OF_A_LAUNCHER = 64
WITHOUT_CALL = {
    "pidfd_open": (
        "Linux 5.3 has it. The end of a process that is not a child of its watcher is noticed by "
        "the "
        "end of its connection, or by a look every 50 ms (every second for a rank that leaves)"
    ),
    "pidfd_send_signal": "processes are signalled by kill(), after a look at their start time",
    "memfd_create": "files without a name in /dev/shm are used instead; snapshots are off",
    "posix_spawn(setsid)": "each start of a process takes 10 ms longer",
}
"""The replacement of a system call that some hosts lack; see base/processes/system_calls.py."""
DESCRIPTORS_OF_A_TRAINER = 4096
"""Data loaders, NCCL's sockets and checkpoint shards of one rank; systemd's default hard limit is
many times that, its soft one 1024."""
PROCESSES_OF_A_RANK = 64
SHARED_MEMORY_OF_A_RANK = 256 << 20
"""NCCL's buffers and the batches of a few data loaders; Docker's default is 64 MiB for all."""
TEMPORARY_SPACE = 1 << 30
SLOW_REVERSE_S = 0.5
"""torch's store looks up the name of each client, which waits that long."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen")
SCHEDULERS_GRACE_S = 30.0
"""From SIGTERM to SIGKILL: Slurm's KillWait and Kubernetes' terminationGracePeriodSeconds by
default."""
_MIB = 1 << 20


@dataclass(frozen=True)
class HostFacts:
    """Facts about a host; None: not known.

    Attributes:
        shared_memory: Bytes free in /dev/shm.
        temporary_folder: Path.
        temporary_space: Bytes free there; None: it cannot be written.
        calls: System calls that some hosts lack, and where each comes from: the interpreter, the
            C library, or "absent".
        kills_groups: The kernel's out-of-memory killer ends all of this control group at once.
        memory_limit: Of this control group, bytes.
        no_processes: Why processes cannot be looked at; None: they can.
        huge_pages: When the kernel uses them for shared memory: `never`, `advise` ...
    """

    nproc: int = 1
    descriptors: int | None = None
    processes: int | None = None
    shared_memory: int | None = None
    temporary_folder: str = "/tmp"  # noqa: S108 - a default of the dataclass
    temporary_space: int | None = None
    clock_source: str | None = None
    calls: Mapping[str, str] = field(default_factory=dict)
    kills_groups: bool = False
    memory_limit: int | None = None
    no_processes: str | None = None
    huge_pages: str | None = None


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about the place where launchers meet.

    Attributes:
        addresses: Of the host; empty: its name does not resolve.
        refusal: Why this host cannot listen there; None: it can, or need not.
        is_reached: A process listens there, as seen from here; None: not tried.
        reverse_s: How long asking for the name of the address took; None: longer than the bound.
        published: Address of this host for the others, and why; None: not known.
        local_addr: Of ``--local-addr``; None: not given.
        gloo_interface: Where gloo is made to listen, as the host's own name leads nowhere good.
    """

    host: str
    port: int
    addresses: Sequence[str] = ()
    why_not: str = ""
    is_host: bool = False
    refusal: str | None = None
    is_reached: bool | None = None
    reverse_s: float | None = 0.0
    published: Published | None = None
    local_addr: str | None = None
    gloo_interface: str | None = None


def about_host(facts: HostFacts) -> Iterator[Finding]:
    """Everything but devices, which the launcher's own probes look at."""
    yield from _descriptors(facts)
    if facts.processes is not None and facts.processes < facts.nproc * PROCESSES_OF_A_RANK:
        text = (
            f"at most {facts.processes} processes and threads may run here; "
            f"{count(facts.nproc, 'rank')} "
            f"may need {facts.nproc * PROCESSES_OF_A_RANK} (ulimit -u, pids.max of the cgroup)"
        )
        yield _host("processes", Fitness.SUSPECT, text)
    yield from _space(facts)
    if facts.clock_source is not None and facts.clock_source not in GOOD_CLOCKS:
        text = (
            f"clock source {facts.clock_source!r}: reading the time may take a microsecond and "
            "more, in every heartbeat; see the kernel's log for why it is not tsc"
        )
        yield _host("clock", Fitness.SUSPECT, text)
    yield from _calls(facts.calls)
    if facts.no_processes is not None:
        yield _host("processes", Fitness.UNHEALTHY, facts.no_processes)
    if facts.kills_groups:
        text = (
            "memory.oom.group is set: a rank that runs out of memory takes the launcher with it, "
            "and nothing restarts it; unset it"
        )
        yield _host("out of memory", Fitness.SUSPECT, text)
    if facts.memory_limit is not None:
        text = f"this control group may have {facts.memory_limit / (1 << 30):.1f} GiB"
        yield _host("memory", Fitness.HEALTHY, text)


def about_network(facts: NetworkFacts) -> Iterator[Finding]:
    """Whether launchers will find each other."""
    where = str(Endpoint(facts.host, facts.port))
    yield from _about_own_address(facts)
    if not facts.addresses:
        text = (
            f"its name does not resolve ({facts.why_not}); launchers try for as long as they wait"
        )
        yield Finding("network", where, Fitness.SUSPECT, text)
        return
    if facts.refusal is not None:
        text = f"this node leads and cannot listen there: {facts.refusal}"
        yield Finding("network", where, Fitness.UNHEALTHY, text)
    elif facts.is_host:
        yield Finding("network", where, Fitness.HEALTHY, "this node leads; it can listen")
    elif facts.is_reached:
        yield Finding("network", where, Fitness.HEALTHY, "a process listens there already")
    else:
        text = "no process listens there yet: its launcher is not started, or a firewall blocks it"
        yield Finding("network", where, Fitness.UNKNOWN, text)
    if facts.reverse_s is None or facts.reverse_s > SLOW_REVERSE_S:
        took = "does not come" if facts.reverse_s is None else f"takes {facts.reverse_s:.1f} s"
        text = (
            f"the name for its address {took}: each rank waits that long when it connects to "
            "torch's store; mend reverse DNS, or put the nodes into /etc/hosts"
        )
        yield Finding("network", "reverse DNS", Fitness.SUSPECT, text)


def _about_own_address(facts: NetworkFacts) -> Iterator[Finding]:
    published = facts.published
    if facts.local_addr is not None:
        address, why = facts.local_addr, "--local-addr says so"
    elif published is not None:
        address, why = published.address, published.why
    else:
        return
    is_lost = is_loopback(address) and not is_loopback(facts.host)
    text = f"others would reach the ranks of this host at {address}: {why}"
    if is_lost:
        text += "; no other host can: give --local-addr an address of this host"
    verdict = Fitness.UNHEALTHY if is_lost else Fitness.HEALTHY
    yield Finding("network", "own address", verdict, text)
    if facts.gloo_interface is not None:
        text = (
            "the host's own name leads to no address that others reach, and gloo would listen "
            f"there: ranks get GLOO_SOCKET_IFNAME={facts.gloo_interface} where it is not set. Mend "
            "the host's own line in /etc/hosts, or set the variable"
        )
        yield Finding("network", "gloo", Fitness.SUSPECT, text)


def about_scheduler(cluster: Cluster | None, term_timeout_s: float) -> Iterator[Finding]:
    """Whether ranks get the time to save that they are promised."""
    if cluster is None:
        return
    yield Finding("scheduler", cluster.scheduler, Fitness.HEALTHY, _known(cluster))
    for note in cluster.notes:
        yield Finding("scheduler", cluster.scheduler, Fitness.SUSPECT, note)
    if term_timeout_s > SCHEDULERS_GRACE_S:
        text = (
            f"ranks have {term_timeout_s:g} s after a signal (--term-timeout); the scheduler kills "
            f"everything {SCHEDULERS_GRACE_S:g} s after its SIGTERM unless configured otherwise "
            "(KillWait, terminationGracePeriodSeconds): let ranks have less than that"
        )
        yield Finding("scheduler", "grace", Fitness.SUSPECT, text)


def _known(cluster: Cluster) -> str:
    facts = {
        "nodes": cluster.nodes,
        "this is node": cluster.node_rank,
        "the first is": cluster.first_host,
    }
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _calls(calls: Mapping[str, str]) -> Iterator[Finding]:
    if calls and set(calls.values()) == {"interpreter"}:
        text = "it has every system call that holdfast uses, and so has the kernel"
        yield _host("interpreter", Fitness.HEALTHY, text)
    from_library = [name for name, source in calls.items() if source == "C library"]
    if from_library:
        text = (
            f"this interpreter was built without {', '.join(from_library)}; holdfast calls "
            f"{'them' if len(from_library) > 1 else 'it'} through the C library"
        )
        yield _host("interpreter", Fitness.HEALTHY, text)
    for name in (name for name, source in calls.items() if source == "absent"):
        yield _host("kernel", Fitness.SUSPECT, f"{name} is refused here; {WITHOUT_CALL[name]}")


def _descriptors(facts: HostFacts) -> Iterator[Finding]:
    limit = facts.descriptors
    if limit is None:
        return
    needed = DESCRIPTORS_OF_A_LAUNCHER + facts.nproc * DESCRIPTORS_OF_A_RANK
    text = f"{count(limit, 'file')} may be open (ulimit -n)"
    if limit < needed:
        text += f"; the launcher of {count(facts.nproc, 'rank')} needs {needed}"
        yield _host("descriptors", Fitness.UNHEALTHY, text)
    elif limit < DESCRIPTORS_OF_A_TRAINER:
        text += f"; a rank with data loaders may want {DESCRIPTORS_OF_A_TRAINER}"
        yield _host("descriptors", Fitness.SUSPECT, text)
    else:
        yield _host("descriptors", Fitness.HEALTHY, text)


def _space(facts: HostFacts) -> Iterator[Finding]:
    wanted = facts.nproc * SHARED_MEMORY_OF_A_RANK
    if facts.shared_memory is not None:
        text = f"{facts.shared_memory / _MIB:.0f} MiB free"
        few = facts.shared_memory < wanted
        if few:
            text += (
                f"; NCCL and data loaders of {count(facts.nproc, 'rank')} may need some "
                f"{wanted / _MIB:.0f} "
                "(docker run --shm-size, an emptyDir of medium Memory)"
            )
        yield _host(SHARED_MEMORY, Fitness.SUSPECT if few else Fitness.HEALTHY, text)
    folder = facts.temporary_folder
    if facts.temporary_space is None:
        yield _host(folder, Fitness.UNHEALTHY, "cannot be written; set TMPDIR to a folder that can")
    elif facts.temporary_space < TEMPORARY_SPACE:
        text = f"{facts.temporary_space / _MIB:.0f} MiB free; logs and evidence go there"
        yield _host(folder, Fitness.SUSPECT, text)


def _host(subject: str, verdict: Fitness, text: str) -> Finding:
    return Finding("host", subject, verdict, text)
