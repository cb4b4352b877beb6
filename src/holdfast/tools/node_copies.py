"""Copies of one node's snapshots on another node, and the kept step, from its launcher's events."""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event


class CopiedStep(Value):
    """A step whose snapshots are at another node.

    Attributes:
        at: When it was named, or its copy began: the snapshot is younger. CLOCK_MONOTONIC.
    """

    step: int
    at: float


class NodeCopies:
    """Follows one launcher.

    Attributes:
        is_used: The job keeps steps.
        peer: The launcher that gets this node's copies in this cycle; empty: none.
        kept: The kept step; None: there is none.
        copied: The newest step of which the peer has the snapshots of this node's ranks.
        why: Why the last step that was to be kept was not copied; empty: it was.
        is_off: None is copied in this cycle.
        n_kept: Kept steps.
        n_copied: Steps that this node has copied.
        n_failed: Steps that it has not.
        n_bytes: Of its copies.
        seconds: That they took.
    """

    def __init__(self) -> None:
        self.is_used = self.is_off = False
        self.peer = self.why = ""
        self.kept: CopiedStep | None = None
        self.copied: CopiedStep | None = None
        self.n_kept = self.n_copied = self.n_failed = self.n_bytes = 0
        self.seconds = 0.0

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event.body:
            case schema.SnapshotPeer(peer, kept, age_s):
                self.is_used, self.is_off, self.why = True, False, ""
                if peer != self.peer or kept is None:
                    self.copied = None
                self.peer = peer
                if kept is None:
                    self.kept = None
                elif self.kept is None or self.kept.step != kept:
                    self.kept = CopiedStep(kept, event.t - age_s)
            case schema.SnapshotCopied(step=step, n_bytes=n_bytes, seconds=seconds):
                self.copied = CopiedStep(step, event.t - seconds)
                self.why = ""
                self.n_copied += 1
                self.n_bytes += n_bytes
                self.seconds += seconds
            case schema.SnapshotNotCopied(why=why, for_good=for_good):
                self.why, self.is_off = why, for_good
                self.n_failed += 1
            case schema.SnapshotKept(step=step, seconds=seconds):
                self.kept = CopiedStep(step, event.t - seconds)
                self.n_kept += 1
