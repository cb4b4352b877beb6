"""The sections of one training: which is open, which timeouts are learned, and where they are kept.

    begin ─► setup ─► step ─► step ─► ... ─► end
                        └── evaluation, checkpointing: the step that they are in is paused

For trainers that run with and without ``ft_launcher``; without it, nothing happens here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.rank_log import rank_logger
from holdfast.fault_tolerance import client as own_client
from holdfast.integrations._learned_file import (
    has_process_group,
    is_rank_0,
    load_timeouts,
    save_timeouts,
)
from holdfast.integrations._pure import section_rules

FILE_NAME = "ft_state.json"


class TrainingSections:
    """One training, from here to :meth:`end`; section ``setup`` is open until the first step.

    Args:
        folder: Where learned timeouts are kept: that of the checkpoints, which all ranks see.
        learns: Learn timeouts.

    Raises:
        RankMonitorClientError: There is a monitor, and it refused or cannot be reached.
    """

    def __init__(self, folder: str | Path, *, learns: bool) -> None:
        self._logger = rank_logger(__name__)
        self._path = Path(folder) / FILE_NAME
        self._client = client = own_client()
        configured = client.section_timeouts.section if client.section_timeouts else ()
        self._learns = learns and client.is_initialized
        self._rules = section_rules.SectionRules(configured)
        self._calls = section_rules.OpenSections()
        if self._learns and load_timeouts(client, self._path, self._logger):
            self._log(f"timeouts loaded from {self._path}: {client.section_timeouts}")
        self._open: str | None = None
        self._switch_to(section_rules.SETUP)

    def step_begins(self) -> None:
        """Ends the setup the first time, and a step that was not ended."""
        self._switch_to(section_rules.STEP)

    def step_ends(self, global_step: int) -> None:
        """After so many steps of the training. A collective, at times, if timeouts are learned."""
        if self._open != section_rules.STEP:
            return
        self._switch_to(None)
        if self._rules.iteration_ended(global_step):
            self._learn(is_final=False)

    def step_breaks(self) -> None:
        """The step was left by an exception, or by a ``break``."""
        if self._open == section_rules.STEP:
            self._switch_to(None)

    def loaded(self) -> None:
        """A checkpoint was loaded."""
        self._rules.loaded()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """An evaluation; it ends the setup and pauses a step."""
        with self._inside(section_rules.EVALUATION):
            yield
        self._rules.evaluated()

    @contextlib.contextmanager
    def checkpointing(self, global_step: int) -> Iterator[None]:
        """A save of a checkpoint; it pauses a step."""
        with self._inside(section_rules.CHECKPOINTING):
            yield
        self._rules.saved(global_step)

    @property
    def iterations(self) -> int:
        """Steps of this run."""
        return self._rules.iterations

    def end(self, *, is_clean: bool) -> None:
        """The training is over; ``is_clean``: without an exception, on all ranks."""
        self._switch_to(None)
        if is_clean:
            self._learn(is_final=True)
        self._client.end_all_sections()
        self._client.shutdown_workload_monitoring()

    @contextlib.contextmanager
    def _inside(self, section: str) -> Iterator[None]:
        paused, client = self._open, self._client
        self._switch_to(None)
        if self._calls.enter(section):
            client.start_section(section)
        try:
            yield
        finally:
            if self._calls.leave(section):
                client.end_section(section)
            if paused == section_rules.STEP:
                self._switch_to(section_rules.STEP)

    def _switch_to(self, section: str | None) -> None:
        if self._open is not None:
            self._client.end_section(self._open)
        self._open = section
        if section is not None:
            self._client.start_section(section)

    def _learn(self, *, is_final: bool) -> None:
        chosen = self._rules.selection(is_final=is_final)
        if not (self._learns and chosen.sections and has_process_group()):
            return
        has_learned = self._client.calculate_and_set_section_timeouts(
            chosen.sections, calc_out_of_section=chosen.with_outside, skip_if_not_ready=True
        )
        if has_learned and is_rank_0(self._client):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_timeouts(self._client, self._path)

    def _log(self, text: str) -> None:
        if is_rank_0(self._client):
            self._logger.info(text)
