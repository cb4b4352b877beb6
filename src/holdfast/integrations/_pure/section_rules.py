"""Decide which section timeouts are learned in a run of a trainer, and when that is tried.

    every iteration ──► a save since the last try? ──► learn measured ones ──► end: once more

A timeout is learned from a run that measured all of its section: ``setup`` with a load in it,
``step`` over enough iterations, ``checkpointing`` with a save that writes before it returns. Every
rank sees the same calls, so all come to the same decision: learning is a collective. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.base.pure.wording import count

SETUP, STEP, EVALUATION, CHECKPOINTING = "setup", "step", "evaluation", "checkpointing"
MIN_ITERATIONS = 16
"""``step`` is learned after more than this in one run: the first steps compile and warm up."""


@dataclass(frozen=True)
class Selection:
    """Timeouts to learn now.

    Attributes:
        sections: Their names.
        with_outside: The timeout outside sections, too.
        reasons: Sections that are left out, each with the reason, for people.
    """

    sections: tuple[str, ...]
    with_outside: bool
    reasons: tuple[str, ...]


class SectionRules:
    """One run of a trainer, from setup on.

    Args:
        sections: The names that the job has timeouts for.
        is_saving_async: A save returns before the checkpoint is written.
    """

    def __init__(self, sections: Collection[str], *, is_saving_async: bool = False) -> None:
        self._names = frozenset(sections)
        self._is_saving_async = is_saving_async
        self._iterations = 0
        self._is_loaded = False
        self._is_evaluated = False
        self._saved_at = self._tried_at = 0

    @property
    def iterations(self) -> int:
        """Training iterations of this run."""
        return self._iterations

    def loaded(self) -> None:
        """A checkpoint was loaded."""
        self._is_loaded = True

    def evaluated(self) -> None:
        """An evaluation has ended."""
        self._is_evaluated = True

    def saved(self, global_step: int) -> None:
        """A checkpoint was saved, after so many steps of the training; one at 0 does not count."""
        self._saved_at = max(self._saved_at, global_step)

    def iteration_ended(self, global_step: int) -> bool:
        """A training iteration has ended; whether to learn now."""
        self._iterations += 1
        if self._saved_at <= self._tried_at:
            return False
        self._tried_at = global_step
        return True

    def selection(self, *, is_final: bool) -> Selection:
        """Timeouts that can be learned; ``is_final``: at the end of a run."""
        has_saved = self._saved_at > 0
        is_measured = {
            SETUP: (self._is_loaded, "no checkpoint was loaded in this run"),
            STEP: (
                self._iterations > MIN_ITERATIONS,
                f"{count(self._iterations, 'iteration')} in this run, {MIN_ITERATIONS} are too few",
            ),
            EVALUATION: (self._is_evaluated, "no evaluation in this run"),
            CHECKPOINTING: (
                has_saved and not self._is_saving_async,
                "checkpoints are written asynchronously"
                if self._is_saving_async
                else "no checkpoint was saved in this run",
            ),
        }
        known = {name: row for name, row in is_measured.items() if name in self._names}
        sections = tuple(name for name, (is_ready, _) in known.items() if is_ready)
        return Selection(
            sections,
            with_outside=is_final and has_saved and {SETUP, STEP} <= set(sections),
            reasons=tuple(
                f"{name}: {why}" for name, (is_ready, why) in known.items() if not is_ready
            ),
        )


class OpenSections:
    """Which calls of a trainer open and close a section.

    ``setup`` is closed once. ``step`` must not be entered again. ``checkpointing`` may be, and the
    outermost call counts.
    """

    def __init__(self) -> None:
        self._depths: dict[str, int] = {}

    def enter(self, section: str) -> bool:
        """A call that belongs to ``section`` begins; whether to open it.

        Raises:
            RuntimeError: ``step`` within ``step``.
        """
        depth = self._depths.get(section, 0)
        if depth and section == STEP:
            raise RuntimeError(
                f"section {section!r} was entered again before it ended: a training or validation "
                "step calls another one"
            )
        self._depths[section] = depth + 1
        return depth == 0

    def leave(self, section: str) -> bool:
        """The call has returned or raised; whether to close the section."""
        depth = self._depths.get(section, 0)
        self._depths[section] = max(0, depth - 1)
        return depth == 1
