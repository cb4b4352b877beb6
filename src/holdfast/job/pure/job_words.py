"""Facts of a job in words: the reasons of its leader, for the launchers that wait and for logs.

Pure. No code reads these texts: tests/unit/test_facts.py replaces them by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.base.pure.wording import count
from holdfast.evidence.pure.evidence import Missing
from holdfast.job.pure.assign import NAMED, AssignmentNote, NodeDesc, NoteOn, and_more, name_some
from holdfast.job.pure.forming import Forming
from holdfast.job.pure.membership import Descriptor
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.running import RunningCycle
from holdfast.job.pure.timing import VERDICT_SHARE
from holdfast.job.pure.workload import MIXED, Difference

_FIRST = 4


# ---------------------------------------------------------------- nodes
def lost(name: str, why: str, silent_s: float | None) -> str:
    """A node is out of the job; ``silent_s`` None: it has said so itself."""
    return f"{name} {'left the job' if silent_s is None else 'was lost'} ({why})"


def silent_for(silent_s: float) -> str:
    """The reason for which a node is given up."""
    return f"silent for {silent_s:.1f} s"


def is_awaited(name: str, silent_s: float) -> str:
    """A node of a cycle that no other follows is silent, and is not given up."""
    return (
        f"{name} is silent for {silent_s:.1f} s. No restart is left, so nothing is gained by "
        "giving it up: it is awaited while other ranks run"
    )


def cut_off(name: str, cause: str) -> str:
    """A node ended its ranks, as nothing came from the leader, which was there."""
    return f"{name} was cut off, and stopped its ranks: {cause}"


def leader_slept(slept_s: float, name: str, unheard_s: float) -> str:
    """The same, as the leader slept."""
    return (
        f"the launcher that leads the job did nothing for {slept_s:.1f} s; {name} stopped its "
        f"ranks after {unheard_s:.1f} s without a message from it"
    )


def unnamed_job() -> str:
    """Jobs of several nodes that have no name can meet."""
    return (
        "this job of several nodes has no name (--rdzv-id is 'none', the default): if launchers of "
        "another unnamed job come to this endpoint, only what they run tells the two jobs apart. "
        "Give each job an --rdzv-id of its own, the same on all its nodes"
    )


def another_job(desc: Descriptor, found: Difference) -> str:
    """Why a launcher is refused that was started for another job."""
    return (
        f"{_launcher(desc)} belongs to another job: {found.text}. Give each job an --rdzv-id and "
        "an --rdzv-endpoint of its own; if nodes of one job run different programs, say so with "
        f"--rdzv-conf {MIXED}=1 on all of them"
    )


def differs(desc: Descriptor, found: Difference) -> str:
    """A launcher joins that is not started as the leader is."""
    return (
        f"{_launcher(desc)} differs from the leader of the job that it joins: {found.text}. If it "
        "is of another job, end it, and give each job an --rdzv-id of its own. (Said once; each "
        "further launcher that differs says so itself)"
    )


def _launcher(desc: Descriptor) -> str:
    return f"the launcher on {desc.hostname} (pid {desc.pid})"


def unfit_nodes(nodes: Nodes) -> str:
    """The first few, each with the reason, and how many more there are."""
    shown = [
        f"{name}: {leave.why.value}{f' ({leave.text})' if leave.text else ''}"
        for name, leave in nodes.unfit.values()
    ]
    return _first_few(shown, f"{len(shown) - _FIRST} more")


def ready_nodes(nodes: Nodes) -> str:
    """The first few of the nodes that wait for a place."""
    return name_some([nodes.alive[node] for node in nodes.ready]) or "nobody"


def assignment_note(note: AssignmentNote) -> str:
    """One line."""
    nodes, policy = note.nodes, note.policy
    if note.on is NoteOn.NO_INFRA_RANK:
        where = name_some(nodes) or "any node"
        return f"ranks follow node addresses: neither SLURM_PROCID nor GROUP_RANK is set on {where}"
    if note.on is NoteOn.NO_DOMAIN:
        return f"--ft-segment: no domain is known of {name_some(nodes)}; they stay spares"
    if policy is not None and policy.segment:
        return (
            f"--ft-segment: MAX of --nnodes ({policy.max_nodes}) is not a multiple of "
            f"{policy.segment}; {policy.max_nodes - policy.max_nodes % policy.segment} is the most"
        )
    moved = zip(note.places[:NAMED], nodes[:NAMED], strict=True)
    shown = [f"{rank} by {node}, infra rank {node.infra_rank}" for rank, node in moved]
    return f"nodes get places that no node claims: {'; '.join(shown)}{and_more(len(nodes))}"


# ---------------------------------------------------------------- a cycle forms
def no_keepers(nodes: Sequence[NodeDesc]) -> str:
    """Why no steps are kept at other nodes."""
    text = "no step is kept at another node (--ft-snapshot-keep)"
    if len(nodes) == 1:
        return f"{text}: there is no other one"
    without = [node for node in nodes if not node.keeps]
    return f"{text}: {name_some(without)} cannot do that. Give the option to all launchers"


def too_few(forming: Forming) -> str:
    """The job is given up as no cycle was formed in time."""
    nodes, why_not = forming.nodes, forming.why_not
    cause = (
        f"{len(nodes.ready)} of {forming.rules.nodes.min_nodes} nodes joined within "
        f"{forming.pace.join_timeout_s:g} s ({ready_nodes(nodes)})"
    )
    if nodes.unfit:
        cause = f"{cause}; not fit: {unfit_nodes(nodes)}"
    return cause if why_not is None else f"{cause}: {why_not}"


def too_small(forming: Forming) -> str:
    """The job is given up as MIN cannot be reached any more."""
    here, policy = len(forming.nodes.alive), forming.rules.nodes
    return (
        f"{here} of {policy.min_nodes} nodes {'is' if here == 1 else 'are'} left, and no other "
        f"can take a place (--nnodes {policy.nnodes}): {unfit_nodes(forming.nodes)}"
    )


def ranks_not_gone(forming: Forming) -> str:
    """The job is given up, as ranks of its last cycle may be alive."""
    late = name_some([forming.nodes.alive[node] for node in sorted(forming.awaited)])
    return f"not all nodes have said that their ranks of cycle {forming.cycle} are gone: {late}"


def not_back(forming: Forming) -> str:
    """The reason for which a survivor of the last cycle is given up."""
    return f"not back {forming.pace.join_timeout_s:g} s after the end of cycle {forming.cycle}"


def wait_for_cycle(forming: Forming, now: float, *, is_decided: bool) -> str:
    """For launchers that wait; ``is_decided``: there is another cycle."""
    rules, pace, nodes = forming.rules, forming.pace, forming.nodes
    policy, ready, form_at = rules.nodes, len(nodes.ready), forming.form_at
    backoff = f"(--ft-restart-backoff {rules.backoff_s:g})"
    if rules.is_of_one and form_at is not None:
        return f"the next cycle starts in {form_at - now:.0f} s {backoff}"
    is_are = "is" if ready == 1 else "are"
    here = f"{ready} of {policy.nnodes} nodes {is_are} here ({ready_nodes(nodes)})"
    until = forming.complete_at if forming.is_too_small_for_good() else forming.join_by
    limit = f"up to {max(0.0, until - now):.0f} s"
    option = f"--rdzv-conf join_timeout={pace.join_timeout_s:g}"
    if forming.awaited:
        late = name_some([nodes.alive[node] for node in forming.awaited])
        return (
            f"{here}; waiting {limit} for {late} to stop the ranks of cycle {forming.cycle} "
            f"({option})"
        )
    if ready < policy.min_nodes:
        more = policy.min_nodes - ready
        return f"{here}; waiting {limit} for {more} more (--nnodes {policy.nnodes}; {option})"
    if form_at is None:
        why_not = "" if forming.why_not is None else forming.why_not
        return f"{here}, and no cycle can be formed of them: {why_not}; waiting {limit}"
    start = f"{here}; starting in {form_at - now:.0f} s"
    if forming.is_pausing(is_decided=is_decided):
        return f"{start}, after a pause {backoff}"
    return (
        f"{start}, or as soon as there are {policy.wanted} "
        f"(--rdzv-conf last_call_timeout={forming.last_call_s:g})"
    )


def wait_for_place(running: RunningCycle, number: int, now: float) -> str:
    """For spares of the cycle that runs."""
    on = count(len(running.states), "node")
    text = f"cycle {number} runs on {on}; waiting for a place: {ready_nodes(running.nodes)}"
    if running.grow_at is None:
        return text
    grows_in_s = max(0.0, running.grow_at - now)
    return f"{text}; it will be stopped in {grows_in_s:.0f} s, and continue with more nodes"


# ---------------------------------------------------------------- incidents
def lost_before() -> str:
    """A node of the cycle was lost before the incident."""
    return "was lost before"


def no_answer(timeout_s: float) -> str:
    """The evidence of a node did not come."""
    return f"did not answer within {VERDICT_SHARE * timeout_s:g} s"


def missing_nodes(missing: Mapping[str, Missing]) -> str:
    """The first few nodes without evidence, with the reasons, and how many more there are."""
    shown = [f"{name}: {it.why}" for name, it in missing.items()]
    return _first_few(shown, count(len(shown) - _FIRST, "more node"))


def _first_few(shown: list[str], more: str) -> str:
    if len(shown) <= _FIRST:
        return "; ".join(shown)
    return "; ".join([*shown[:_FIRST], f"and {more}"])
