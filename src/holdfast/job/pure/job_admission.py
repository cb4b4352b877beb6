"""Which launchers take part in a job, and which are refused.

Pure. A launcher of another job is refused before it has a place (:mod:`.workload`). One that was
given up, and lives after all, is refused once: its place may be another's by now. It may come back,
as another, if it was only silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.pure.common_events import Note
from holdfast.job.pure import job_words as words
from holdfast.job.pure import membership as msg
from holdfast.job.pure.leader_messages import Effect
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.workload import Workload, difference


@dataclass
class JobAdmission:
    """Of one job; ``workload``: see :attr:`.Rules.workload`."""

    workload: Workload | None
    nodes: Nodes

    _has_reported_difference: bool = field(default=False, init=False)

    def refusal(self, message: msg.Message, *, is_over: bool) -> msg.NodeRefused | None:
        """Of a node that is gone, by its message; None: it knows, or leaves."""
        node = message.node
        why = self.nodes.refusal(message)
        if isinstance(message, msg.Offer) and node in self.nodes.silent:
            # On another connection than the one that a refusal before may have been sent on.
            why = words.silent_for(self.nodes.silent[node])
        if why is None:
            return None
        return msg.NodeRefused(node, why, may_return=node in self.nodes.silent and not is_over)

    def refuses(self, join: msg.Join) -> tuple[bool, list[Effect]]:
        """Whether a new launcher is of another job; any other difference is reported, once."""
        desc = join.desc
        found = difference(self.workload, desc.workload)
        if found is None:
            return False, []
        if not found.is_another_job:
            if self._has_reported_difference:
                return False, []
            self._has_reported_difference = True
            return False, [Note("warning", words.differs(desc, found))]
        why = words.another_job(desc, found)
        self.nodes.refuse(join.node)
        warning = Note("warning", f"a launcher was refused: {why}")
        return True, [msg.NodeRefused(join.node, why), warning]
