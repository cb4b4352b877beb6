"""Decide, at each hook of a trainer, whether a heartbeat goes and whether timeouts are learned.

    setup ──► hooks: a heartbeat each, but for a load ──► torn down, or raised: learn? leave

Timeouts are learned at most once per run, at its end, when they cover all that a run does: a load,
a save with heartbeats on both sides, and two iterations. Every rank sees the same hooks, so all
come to the same decision: learning is a collective. Pure.
"""

from __future__ import annotations

from enum import Enum, auto

from holdfast.integrations._pure.run_end import is_training_completed

_MIN_ITERATIONS = 2


class Hook(Enum):
    """Hooks of a trainer."""

    TRAIN_START = auto()
    TRAIN_BATCH_END = auto()
    TRAIN_END = auto()
    VALIDATION_START = auto()
    VALIDATION_BATCH_END = auto()
    VALIDATION_END = auto()
    CHECKPOINT_SAVED = auto()
    CHECKPOINT_LOADED = auto()


class Do(Enum):
    """Actions of the callback, in the order given."""

    WRITE_FLAG = auto()
    SEND_HEARTBEAT = auto()
    LEARN = auto()
    LEAVE = auto()


class HeartbeatRules:
    """One run of a trainer, from setup on.

    Args:
        learns: Timeouts are to be learned.
        autoresume: A flag is to be written when the training is complete.
    """

    def __init__(self, *, learns: bool, autoresume: bool) -> None:
        self._learns = learns
        self._autoresume = autoresume
        self._iterations = 0
        self._heartbeats = 0
        self._is_loaded = False
        self._heartbeats_before_save = 0  # before the latest one; 0: none, or no save
        self._is_save_measured = False

    def handle(self, hook: Hook) -> list[Do]:
        """The trainer called a hook of the middle of a run."""
        if hook is Hook.CHECKPOINT_LOADED:
            self._is_loaded = True
            return []
        if hook is Hook.TRAIN_BATCH_END:
            self._iterations += 1
        if hook is Hook.CHECKPOINT_SAVED:  # two saves in a row must not make one long interval
            self._heartbeats_before_save = self._heartbeats
        return [self._heartbeat()]

    def torn_down(self, *, has_reached_end: bool) -> list[Do]:
        """The run has ended without an exception."""
        is_complete = is_training_completed(
            iterations=self._iterations, has_failed=False, has_reached_end=has_reached_end
        )
        flag = [Do.WRITE_FLAG] if self._autoresume and is_complete else []
        return [*flag, *self._end(may_learn=True)]

    def raised(self, *, is_clean_stop: bool) -> list[Do]:
        """The run has ended with an exception."""
        return self._end(may_learn=is_clean_stop)

    def _end(self, *, may_learn: bool) -> list[Do]:
        heartbeat = self._heartbeat()
        learn = may_learn and self._learns and self._is_measured()
        return [heartbeat, *([Do.LEARN] if learn else []), Do.LEAVE]

    def _is_measured(self) -> bool:
        return self._iterations >= _MIN_ITERATIONS and self._is_loaded and self._is_save_measured

    def _heartbeat(self) -> Do:
        self._heartbeats += 1
        if 0 < self._heartbeats_before_save < self._heartbeats:
            self._is_save_measured = True
        return Do.SEND_HEARTBEAT
