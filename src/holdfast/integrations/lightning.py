"""Callbacks for Lightning, with the names and arguments that programs for NeMo use.

    FaultToleranceCallback           a heartbeat at each hook
    FaultToleranceSectionsCallback   sections: setup, step, checkpointing

    SnapshotCallback                 snapshots in memory: a restart begins from the last step

All are active in ``fit`` only; the first two need ``ft_launcher``. ``integrations/_pure`` decides
on their actions. They work with ``lightning`` and with ``pytorch_lightning``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from holdfast.base.rank_log import rank_logger
from holdfast.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest
from holdfast.integrations._fit_snapshots import FitSnapshots
from holdfast.integrations._learned_file import (
    has_process_group,
    is_rank_0,
    load_timeouts,
    save_timeouts,
)
from holdfast.integrations._pure import section_rules
from holdfast.integrations._pure.heartbeat_rules import Do, HeartbeatRules, Hook
from holdfast.integrations._pure.run_end import (
    has_reached_end,
    is_clean_stop,
    is_training_completed,
)
from holdfast.integrations._surround import surround
from holdfast.integrations.simulated_fault import SimulatedFaultParams, arm_fault, parse_fault

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "SimulatedFaultParams",
    "SnapshotCallback",
]


def is_module_available(name: str) -> bool:
    """Whether it can be imported; its parents are, to find out."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


# Where both are installed, the base class is of the one that the program has imported.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.callbacks import Callback
elif is_module_available("lightning.pytorch"):
    from lightning.pytorch.callbacks import Callback
elif is_module_available("pytorch_lightning"):
    from pytorch_lightning.callbacks import Callback
else:
    raise ImportError(
        "holdfast.integrations.lightning needs Lightning: pip install 'holdfast[lightning]', or "
        "pip install pytorch_lightning",
        name="lightning",
    )

FINISHED_FLAG_FILE_ENV_VAR = "FAULT_TOL_FINISHED_FLAG_FILE"
"""Names the variable with the path of the file that says: the training is complete."""
_LOGGER = "nemo_logger.FaultToleranceCallback"

Faults = SimulatedFaultParams | Mapping[str, Any] | None


class _FitCallback(Callback):
    """What both callbacks share: a client from ``setup`` to the end of ``fit``, a file, a flag.

    Attributes:
        fault_tol_client: This rank's client; ``None`` outside of ``fit``.
        autoresume, calculate_timeouts, simulated_fault_params, logger: As constructed.
    """

    TIMEOUTS_FILENAME: str
    FT_DIR_NAME = "ft_state"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Faults = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = _LOGGER,
    ) -> None:
        super().__init__()
        self.autoresume = autoresume
        self.calculate_timeouts = calculate_timeouts
        self.simulated_fault_params = parse_fault(simulated_fault_params)
        self.fault_tol_client: RankMonitorClient | None = None
        self.logger = rank_logger(logger_name or _LOGGER)
        self._exp_dir = exp_dir
        self._state_path: Path | None = None

    @property
    def is_initialized(self) -> bool:
        """Between a successful ``setup`` for ``fit`` and the end of that run."""
        return self.fault_tol_client is not None

    # ------------------------------------------------------------------ life

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        """Connect to this rank's monitor, and take over timeouts that were learned before.

        Raises:
            RuntimeError: ``autoresume`` without its variable, or no timeouts.
            ValueError: The folder for learned timeouts is missing, or the configured sections are
                not those of the callback.
            RankMonitorClientError: The process was not started by ``ft_launcher``.
        """
        if stage != "fit":
            return
        assert not self.is_initialized, "the callback is set up already"
        if self.autoresume and not os.environ.get(FINISHED_FLAG_FILE_ENV_VAR):
            raise RuntimeError(
                f"autoresume needs {FINISHED_FLAG_FILE_ENV_VAR}, the path of the file that marks a "
                "complete training; export it in the job script"
            )
        client = RankMonitorClient()
        client.keeps_given_timeouts = True
        self._state_path = self._state_folder(trainer) / self.TIMEOUTS_FILENAME
        client.init_workload_monitoring()
        try:
            self._check_configuration(client)
            if self.calculate_timeouts and load_timeouts(client, self._state_path, self.logger):
                self._info(client, "timeouts loaded: " + self._values(client))
            self._check_timeouts(client)
            if self.simulated_fault_params is not None:
                arm_fault(self.simulated_fault_params)
            self._begin(client, trainer)
        except BaseException:
            self._leave(client)
            raise
        self.fault_tol_client = client
        self._info(client, "client initialized; timeouts: " + self._values(client))

    def _state_folder(self, trainer: Any) -> Path:
        if self._exp_dir:
            folder = Path(self._exp_dir)
        else:
            log_dir = trainer.log_dir  # collective
            if log_dir is None:
                raise ValueError(
                    "trainer.log_dir is None, so there is no folder for learned timeouts; pass "
                    "exp_dir, a folder that all ranks of all jobs of this training see"
                )
            folder = Path(log_dir) / self.FT_DIR_NAME
            if trainer.is_global_zero:
                folder.mkdir(parents=True, exist_ok=True)
            trainer.strategy.barrier()
        if not folder.is_dir():
            raise ValueError(f"the folder for learned timeouts is missing: {folder}")
        return folder

    def teardown(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        """``fit`` has ended without an exception."""
        if stage != "fit" or self.fault_tol_client is None:
            return
        max_epochs, max_steps = trainer.max_epochs, trainer.max_steps
        self._torn_down(
            self.fault_tol_client,
            is_at_end=has_reached_end(
                max_steps=max_steps if isinstance(max_steps, int) else None,
                global_step=trainer.global_step,
                max_epochs=max_epochs if isinstance(max_epochs, int) else None,
                current_epoch=trainer.current_epoch,
            ),
        )

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """``fit`` has ended with an exception."""
        if self.fault_tol_client is not None:
            is_sigterm = bool(getattr(trainer, "received_sigterm", False))
            is_clean = is_clean_stop(exception, is_sigterm=is_sigterm)
            self._raised(self.fault_tol_client, exception, is_clean=is_clean)

    def _leave(self, client: RankMonitorClient) -> None:
        self.fault_tol_client = None
        client.shutdown_workload_monitoring()

    # ------------------------------------------------------------------ for the callbacks

    def _check_configuration(self, client: RankMonitorClient) -> None:
        pass

    def _check_timeouts(self, client: RankMonitorClient) -> None:
        pass

    def _values(self, client: RankMonitorClient) -> str:
        raise NotImplementedError

    def _begin(self, client: RankMonitorClient, trainer: Any) -> None:
        raise NotImplementedError

    def _torn_down(self, client: RankMonitorClient, *, is_at_end: bool) -> None:
        raise NotImplementedError

    def _raised(
        self, client: RankMonitorClient, exception: BaseException, *, is_clean: bool
    ) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ acts

    def _learn(
        self, client: RankMonitorClient, which: str, calculate: Callable[[], object]
    ) -> None:
        if not has_process_group():
            self._info(client, "timeouts are not calculated: there is no process group")
            return
        self._info(client, f"Updating FT timeouts{which}")
        calculate()
        self._info(client, "Updated FT timeouts: " + self._values(client))
        assert self._state_path is not None
        if is_rank_0(client):
            save_timeouts(client, self._state_path)

    def _write_flag(self) -> None:
        path = os.environ.get(FINISHED_FLAG_FILE_ENV_VAR)
        try:
            if not path:
                raise OSError(f"{FINISHED_FLAG_FILE_ENV_VAR} is not set")  # noqa: TRY301
            Path(path).touch()
        except OSError as error:
            self.logger.error(  # noqa: TRY400 - the error says it all
                "the training is complete, but its flag was not written: %s", error
            )

    def _info(self, client: RankMonitorClient, text: str) -> None:
        if is_rank_0(client):
            self.logger.info("[FaultToleranceCallback@rank0] %s", text)


class FaultToleranceCallback(_FitCallback):
    """Sends a heartbeat at each hook of ``fit``; learns heartbeat timeouts.

    Args:
        autoresume: Touch the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names when the training is
            complete.
        calculate_timeouts: Learn the timeouts at the end of a run that loaded and saved a
            checkpoint, keep them in ``_ft_state.json``, and use them in the next run.
        simulated_fault_params: A fault on purpose: :class:`SimulatedFaultParams`, or a mapping of
            its fields.
        exp_dir: An existing folder for the file, which all jobs of the training see. ``None``:
            ``ft_state`` in ``trainer.log_dir``.
        logger_name: Of the logger for messages.
    """

    TIMEOUTS_FILENAME = "_ft_state.json"

    def _values(self, client: RankMonitorClient) -> str:
        timeouts = client.hb_timeouts
        return str(timeouts) if timeouts and timeouts.are_valid else "not calculated yet"

    def _check_timeouts(self, client: RankMonitorClient) -> None:
        timeouts = client.hb_timeouts
        if not (self.calculate_timeouts or (timeouts and timeouts.are_valid)):
            raise RuntimeError(
                f"the heartbeat timeouts are {timeouts}; set --ft-initial-rank-heartbeat-timeout "
                "and --ft-rank-heartbeat-timeout, or calculate_timeouts=True"
            )

    def _begin(self, client: RankMonitorClient, trainer: Any) -> None:
        self._rules = HeartbeatRules(learns=self.calculate_timeouts, autoresume=self.autoresume)

    def _torn_down(self, client: RankMonitorClient, *, is_at_end: bool) -> None:
        self._carry_out(client, self._rules.torn_down(has_reached_end=is_at_end))

    def _raised(
        self, client: RankMonitorClient, exception: BaseException, *, is_clean: bool
    ) -> None:
        self._carry_out(client, self._rules.raised(is_clean_stop=is_clean))

    def _carry_out(self, client: RankMonitorClient, actions: list[Do]) -> None:
        for action in actions:
            if action is Do.SEND_HEARTBEAT:
                client.send_heartbeat()
            elif action is Do.LEARN:
                self._learn(client, "...", client.calculate_and_set_hb_timeouts)
            elif action is Do.LEAVE:
                self._leave(client)
            elif is_rank_0(client):
                self._write_flag()

    def _on(self, hook: Hook) -> None:
        if self.fault_tol_client is not None:
            self._carry_out(self.fault_tol_client, self._rules.handle(hook))

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.TRAIN_START)

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.TRAIN_BATCH_END)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.TRAIN_END)

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.VALIDATION_START)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.VALIDATION_BATCH_END)

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.VALIDATION_END)

    def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
        """A heartbeat."""
        self._on(Hook.CHECKPOINT_SAVED)

    def on_load_checkpoint(self, *_: Any, **__: Any) -> None:
        """Noted; no heartbeat."""
        self._on(Hook.CHECKPOINT_LOADED)


class FaultToleranceSectionsCallback(_FitCallback):
    """Opens and closes sections; learns their timeouts.

    ``setup`` lasts until the first batch, ``step`` is a call of ``strategy.training_step`` or
    ``validation_step``, ``checkpointing`` one of ``save_checkpoint`` or ``remove_checkpoint``.

    Args:
        autoresume: As in :class:`FaultToleranceCallback`.
        calculate_timeouts: Learn the timeouts after each save and at the end of a run, keep them in
            ``_ft_state_.json``, and use them in the next run.
        simulated_fault_params: As in :class:`FaultToleranceCallback`.
        exp_dir: As in :class:`FaultToleranceCallback`.
        logger_name: As in :class:`FaultToleranceCallback`.
        exc_handling_policy: Called with the exception that ended ``fit`` on this rank. It returns
            a request for the launcher, or ``None`` for none. ``ShutdownWorkload`` also writes the
            flag, so that the job script submits no further job.
    """

    TIMEOUTS_FILENAME = "_ft_state_.json"
    MIN_TR_ITERS_FOR_STEP_TIMEOUT_UPDATE = section_rules.MIN_ITERATIONS
    _SECTIONS = (section_rules.SETUP, section_rules.STEP, section_rules.CHECKPOINTING)

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Faults = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = _LOGGER,
        exc_handling_policy: Callable[[BaseException], WorkloadControlRequest | None] | None = None,
    ) -> None:
        super().__init__(
            autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name
        )
        self._policy = exc_handling_policy
        self._is_setup_open = False
        self._restores: list[Callable[[], None]] = []

    def _check_configuration(self, client: RankMonitorClient) -> None:
        configured = client.section_timeouts.section if client.section_timeouts else {}
        if set(configured) != set(self._SECTIONS):
            raise ValueError(
                f"sections {sorted(configured)} are configured, and this callback has "
                f"{list(self._SECTIONS)}; set --ft-rank-section-timeouts "
                "setup:SECONDS,step:SECONDS,checkpointing:SECONDS"
            )

    def _values(self, client: RankMonitorClient) -> str:
        return str(client.section_timeouts)

    def _begin(self, client: RankMonitorClient, trainer: Any) -> None:
        strategy = trainer.strategy
        checkpoint_io = getattr(strategy, "checkpoint_io", None)
        finalizes = hasattr(checkpoint_io, "maybe_finalize_save_checkpoint")
        self._rules = section_rules.SectionRules(self._SECTIONS, is_saving_async=finalizes)
        self._open = section_rules.OpenSections()

        def saved() -> None:
            self._rules.saved(trainer.global_step)

        self._wrap(strategy, "training_step", section_rules.STEP)
        self._wrap(strategy, "validation_step", section_rules.STEP)
        self._wrap(strategy, "save_checkpoint", section_rules.CHECKPOINTING, saved)
        self._wrap(strategy, "remove_checkpoint", section_rules.CHECKPOINTING)
        if finalizes:
            self._wrap(checkpoint_io, "maybe_finalize_save_checkpoint", section_rules.CHECKPOINTING)
        client.start_section(section_rules.SETUP)
        self._is_setup_open = True

    def _wrap(
        self, owner: Any, name: str, section: str, after: Callable[[], None] = lambda: None
    ) -> None:
        """Time calls of ``owner.name``; :meth:`_leave` puts the original back."""

        @contextlib.contextmanager
        def timed() -> Iterator[None]:
            client = self.fault_tol_client
            if client is None:
                yield
                return
            if self._open.enter(section):
                client.start_section(section)
            try:
                yield
            finally:
                if self._open.leave(section):
                    client.end_section(section)
            after()

        self._restores.append(surround(owner, name, timed))

    def _leave(self, client: RankMonitorClient) -> None:
        super()._leave(client)
        while self._restores:
            self._restores.pop()()

    # ------------------------------------------------------------------ hooks

    def _close_setup(self) -> None:
        if self._is_setup_open and self.fault_tol_client is not None:
            self._is_setup_open = False
            self.fault_tol_client.end_section(section_rules.SETUP)

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """The first one ends the setup."""
        self._close_setup()

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        """The first one ends the setup."""
        self._close_setup()

    def on_load_checkpoint(self, *_: Any, **__: Any) -> None:
        """Noted: the setup of this run is one with a load."""
        if self.fault_tol_client is not None:
            self._rules.loaded()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """After a save, timeouts are learned."""
        client = self.fault_tol_client
        if client is not None and self._rules.iteration_ended(trainer.global_step):
            self._maybe_learn(client, is_final=False)

    def _torn_down(self, client: RankMonitorClient, *, is_at_end: bool) -> None:
        self._close_setup()
        is_complete = is_training_completed(
            iterations=self._rules.iterations, has_failed=False, has_reached_end=is_at_end
        )
        if self.autoresume and is_complete and is_rank_0(client):
            self._write_flag()
        self._maybe_learn(client, is_final=True)
        self._leave(client)

    def _raised(
        self, client: RankMonitorClient, exception: BaseException, *, is_clean: bool
    ) -> None:
        self._close_setup()
        if is_clean:
            self._maybe_learn(client, is_final=True)
        else:
            self._info(client, f"timeouts are not calculated after {type(exception).__name__}")
        try:
            if self._policy is not None:
                self._apply_policy(client, self._policy(exception))
        finally:
            self._leave(client)

    def _maybe_learn(self, client: RankMonitorClient, *, is_final: bool) -> None:
        if not self.calculate_timeouts:
            return
        chosen = self._rules.selection(is_final=is_final)
        for reason in chosen.reasons:
            self._info(client, f"timeout not calculated, {reason}")
        if chosen.sections or chosen.with_outside:
            names = list(chosen.sections)
            self._learn(
                client,
                f" for: {names}, outside sections: {chosen.with_outside}",
                lambda: client.calculate_and_set_section_timeouts(
                    selected_sections=names, calc_out_of_section=chosen.with_outside
                ),
            )

    def _apply_policy(
        self, client: RankMonitorClient, request: WorkloadControlRequest | None
    ) -> None:
        if request is None:
            return
        if not isinstance(request, WorkloadControlRequest):
            _refuse_policy(request)
        client.send_workload_control_request(request)
        if request.action is WorkloadAction.ShutdownWorkload:
            self.logger.warning("the training is marked as complete, because of %s", request)
            self._write_flag()


class SnapshotCallback(Callback):
    """Snapshots of a training in memory: a restart begins from the last step, not from a save.

    A script with this callback needs no other change: ``fit`` begins from the newest snapshot that
    all ranks have, or from ``ckpt_path`` where that is newer. Restored are the module, optimizers,
    schedulers, the precision plugin, random numbers, the place in the data, the progress of the
    loops, sums over the epoch (``self.log``, torchmetrics), and the ``state_dict()`` of callbacks
    and of the datamodule, as far as it is plain data and tensors. Hooks of checkpoints
    (``on_save_checkpoint``, ``on_load_checkpoint``) are not called.

    A snapshot is taken when all that belongs to a step is done, with its validation.

    Args:
        **more: Further parts of the state, by name, as for :class:`holdfast.snapshot.Snapshots`:
            parts beside the module, such as a moving average of its weights.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self._more = more
        self._snapshots: FitSnapshots | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        """Before a checkpoint is loaded."""
        if stage == "fit":
            self._snapshots = FitSnapshots(trainer, self._more)
            self._snapshots.begin()

    def on_train_start(self, *_: Any) -> None:
        """The loops take over the progress of the snapshot."""
        if self._snapshots is not None:
            self._snapshots.train_starts()

    def teardown(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        """``fit`` has ended without an exception."""
        self._leave()

    def on_exception(self, *_: Any) -> None:
        """``fit`` has ended with an exception."""
        self._leave()

    def _leave(self) -> None:
        snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots.end()


def _refuse_policy(request: object) -> NoReturn:
    raise AssertionError(
        f"exc_handling_policy returned {request!r}, expected a WorkloadControlRequest or None"
    )
