"""One node of a job of several: between its own machine and the one that speaks for it.

    core.node   ── failure, cycle over ──►   core.member  ── messages ──►  leader
                ◄── start, stop, leave ──                 ◄─ decisions ──

Carries words from one to the other, and keeps a port for rank 0 in case it will be here.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from holdfast.core import member as belonging
from holdfast.core import node as machine
from holdfast.core.domain import BY_HAND
from holdfast.core.exit_codes import of_a_host
from holdfast.core.membership import LeaveWhy, Outcome
from holdfast.core.never import assert_never
from holdfast.fault_tolerance.console import LOGGER
from holdfast.fault_tolerance.meeting import Meeting, describe_node
from holdfast.fault_tolerance.meeting_plan import MeetingPlan
from holdfast.fault_tolerance.plan import LaunchPlan
from holdfast.fault_tolerance.ranks import NodePlace
from holdfast.host.lease import Lease
from holdfast.host.loop import Loop
from holdfast.host.port import ReservedPort

Tell = Callable[[machine.Event], None]
"""Hands an event to the node's machine, and carries out what it says."""
WriteDown = Callable[..., None]
"""Writes an event of this kind, with these fields, into the launcher's event file."""


class NodeOfMany:
    """This launcher's dealings with the others. Main thread only.

    Args:
        plan: What runs here.
        meeting: Where and how launchers meet.
        node_name: Of this host.
        job: Names this launcher among all that ever run on this host.
        tell: The way to the node's machine.
        write_down: The way to the launcher's event file.
        lease: Read by our monitors.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        meeting: MeetingPlan,
        node_name: str,
        job: str,
        tell: Tell,
        write_down: WriteDown,
        lease: Lease | None,
    ) -> None:
        self._tell = tell
        self._write_down = write_down
        self._finished = False
        self._place: NodePlace | None = None
        self._port: ReservedPort | None = ReservedPort()
        member = belonging.Member(
            node=f"{node_name}-{job}",
            desc=describe_node(
                nproc=plan.nproc_per_node,
                port=self._port.number,
                infra_rank=meeting.infra_rank,
                infra_is_place=meeting.infra_is_place,
                domain=_domain(meeting),
            ),
            pace=meeting.pace,
        )
        self._meeting = Meeting(
            member=member,
            plan=meeting,
            run_id=plan.run_id,
            extend=lease.extend if lease else lambda _: None,
        )

    def begin(self, loop: Loop, on_closed: Callable[[], None]) -> None:
        """Meet the others and wait for a round; ``on_closed``: see :meth:`Meeting.begin`."""
        self._meeting.begin(loop, self._on_decision, on_closed)

    def place(self) -> tuple[NodePlace, ReservedPort | None]:
        """Where this node stands in the cycle that was just decided, and the port kept for it."""
        assert self._place is not None
        port, self._port = self._port, None
        return self._place, port

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called; None: never."""
        return self._meeting.next_deadline()

    def on_time(self) -> None:
        """Time has passed."""
        self._meeting.on_time()

    # ------------------------------------------------------------ what happens here
    def signal_arrived(self, signum: int) -> None:
        """This launcher is to end; its ranks, if it still has any, have been told."""
        name = signal.Signals(signum).name
        self._meeting.feed(belonging.SignalArrived(name))
        if self._finished:  # it only hosted the leader any more
            self._meeting.abdicate(f"it got {name}")

    def control_requested(self, rank: int, action: str, text: str) -> None:
        """A rank asks for something."""
        self._meeting.feed(belonging.ControlRequested(rank, action, text))

    def failure_seen(self, cycle: int, cause: str, *, every: bool, may_restart: bool) -> None:
        """A rank failed; ``every``: none runs any more; not ``may_restart``: it asks for that."""
        self._meeting.feed(belonging.RanksFailed(cycle, cause, every, may_restart))

    def may_join(self, problem: str | None) -> None:
        """This host was checked for the first time; ``problem``: why it must not have ranks."""
        self._meeting.may_join(problem)

    def unhealthy(self, problem: str) -> None:
        """This host must not have ranks again; those that it has are ended."""
        self._meeting.feed(belonging.Unhealthy(problem))

    def cycle_over(self, cycle: int, *, succeeded: bool, problem: str | None) -> None:
        """Nothing of the cycle is alive here; ``problem``: why nothing must be again."""
        if succeeded:
            self._meeting.feed(belonging.RanksSucceeded(cycle))
            return
        if problem is not None:
            self._meeting.feed(belonging.Unhealthy(problem))
        self._port = self._port or ReservedPort()
        self._meeting.offer_port(self._port.number)
        self._meeting.feed(belonging.RanksStopped(cycle))

    def finished(self, end: machine.End, cycle: int) -> None:
        """This node has ended its part; it may go on hosting the leader for the others."""
        self._finished = True
        if end is machine.End.STUCK:
            self._meeting.feed(belonging.RanksStuck(cycle, "a rank cannot be killed"))
        if end is machine.End.SIGNALLED:
            self._meeting.abdicate("it was told to end by a signal")

    @property
    def may_close(self) -> bool:
        """Nobody needs the leader that may be here."""
        return self._meeting.may_close

    def exit_code(self, own: int) -> int:
        """Of this launcher; ``own``: when its part was over. Ask when :attr:`may_close`."""
        end = self._meeting.end_of_others
        return own if end is None else of_a_host(own, end.exit_code)

    def close(self) -> None:
        """Say the last words."""
        self._meeting.close()
        if self._port:
            self._port.release()

    # ------------------------------------------------------------ what was decided
    def _on_decision(self, effect: belonging.Effect) -> None:
        match effect:
            case belonging.StartRanks(formed, place):
                self._place = NodePlace(
                    master_addr=formed.master_addr,
                    master_port=formed.master_port,
                    group_rank=place.group_rank,
                    group_world_size=len(formed.places),
                    rank_offset=place.rank_offset,
                    world_size=formed.world_size,
                    gloo_interface=self._meeting.gloo_interface,
                )
                self._tell(machine.StartAsked(formed.cycle))
            case belonging.StopRanks(cycle, how, cause, for_good):
                at_once = how is belonging.How.AT_ONCE
                self._write_down("cycle_stopping", cause=cause, at_once=at_once)
                LOGGER.info("cycle %d is over for this node: %s", cycle, cause)
                self._tell(machine.StopAsked(at_once=at_once, for_good=for_good))
            case belonging.Standby(cycle):
                self._write_down("standing_by", without_us=cycle)
                LOGGER.info("cycle %d has started without this node, which stands by", cycle)
            case belonging.Note(level, text):
                LOGGER.log(logging.getLevelName(level.upper()), "%s", text)
            case belonging.Finish():
                if effect.text:
                    severity = logging.ERROR if effect.exit_code else logging.INFO
                    LOGGER.log(severity, "leaving the job (%s): %s", effect.why.value, effect.text)
                self._tell(machine.Dismissed(_end(effect), effect.exit_code))
                if effect.why is LeaveWhy.FENCED:  # so has everybody who hears what we heard
                    self._meeting.abdicate(effect.text)
                elif self._meeting.leads and effect.why in (LeaveWhy.UNHEALTHY, LeaveWhy.EXCLUDED):
                    LOGGER.info("the others need this launcher to meet: it stays until they end")
            case belonging.Send():
                raise AssertionError("the meeting sends messages itself")
            case _:
                assert_never(effect)


def _domain(meeting: MeetingPlan) -> str | None:
    """Where this node belongs to, if anybody wants to know; None: it can only stand by."""
    if meeting.domain is not None or meeting.rules.nodes.segment is None:
        return meeting.domain
    from holdfast.host.nvlink import FabricUnknownError, fabric  # noqa: PLC0415 - seldom used

    try:
        return fabric()
    except FabricUnknownError as error:
        LOGGER.warning(
            "--ft-segment: it is not known which NVLink domain this node is in (%s); without one "
            "it can only stand by. Say it with %s, the same on all nodes of a domain",
            error,
            BY_HAND,
        )
        return None


def _end(finish: belonging.Finish) -> machine.End:
    """How this node's part ended, in the words of a node alone."""
    if finish.outcome is not None:
        return {
            Outcome.SUCCEEDED: machine.End.SUCCEEDED,
            Outcome.FAILED: machine.End.FAILED,
            Outcome.SHUT_DOWN: machine.End.SHUT_DOWN,
        }[finish.outcome]
    return {
        LeaveWhy.EXCLUDED: machine.End.EXCLUDED,
        LeaveWhy.UNHEALTHY: machine.End.UNHEALTHY,
        LeaveWhy.SIGNALLED: machine.End.SIGNALLED,
        LeaveWhy.STUCK: machine.End.STUCK,
    }.get(finish.why, machine.End.FAILED)
