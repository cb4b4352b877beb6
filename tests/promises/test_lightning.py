"""``ptl_resiliency``: when the callbacks send, learn and mark; its rules need no Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from holdfast.integrations._pure.heartbeat_rules import Do, HeartbeatRules, Hook
from holdfast.integrations._pure.run_end import (
    has_reached_end,
    is_clean_stop,
    is_training_completed,
)
from holdfast.integrations._pure.section_rules import (
    CHECKPOINTING,
    SETUP,
    STEP,
    OpenSections,
    SectionRules,
)
from tests.promises.rows import promise, promises

BATCH, SAVE, LOAD = Hook.TRAIN_BATCH_END, Hook.CHECKPOINT_SAVED, Hook.CHECKPOINT_LOADED
BEAT, LEARN, FLAG, LEAVE = Do.SEND_HEARTBEAT, Do.LEARN, Do.WRITE_FLAG, Do.LEAVE


# ---------------------------------------------------------------- how a training ends
@promises(
    "lightning 3.3",
    "error, clean",
    {
        "`sys.exit(0)` is a clean end": (SystemExit(0), True),
        "`sys.exit()`, too": (SystemExit(), True),
        "`sys.exit(1)` is a failure": (SystemExit(1), False),
        "KeyboardInterrupt is a failure": (KeyboardInterrupt(), False),
        "Any other exception is a failure": (ValueError(), False),
    },
)
def test_ends(error: BaseException, clean: bool) -> None:
    assert is_clean_stop(error, is_sigterm=False) is clean


@promises(
    "lightning 3.4",
    "end, complete",
    {
        "`global_step >= max_steps` completes a training": ((100, 100, None, 0), True),
        "`current_epoch >= max_epochs` does": ((-1, 50, 2, 2), True),
        "`max_time` alone does not": ((None, 50, None, 1), False),
    },
)
def test_complete(end: tuple[Any, int, Any, int], complete: bool) -> None:
    max_steps, global_step, max_epochs, current_epoch = end
    reached = has_reached_end(
        max_steps=max_steps,
        global_step=global_step,
        max_epochs=max_epochs,
        current_epoch=current_epoch,
    )
    completed = is_training_completed(iterations=50, has_failed=False, has_reached_end=reached)
    assert completed is complete


@promise(
    "lightning 3.4", "A run of at most one iteration that did not fail found nothing left to do"
)
def test_empty_run() -> None:
    done = [
        is_training_completed(iterations=n, has_failed=False, has_reached_end=False)
        for n in range(3)
    ]
    assert done == [True, True, False]
    assert not is_training_completed(iterations=0, has_failed=True, has_reached_end=False)


# ---------------------------------------------------------------- heartbeats
@promises(
    "lightning 4.1",
    "hook",
    {f"`{hook.name.lower()}` sends a heartbeat": hook for hook in Hook if hook is not LOAD},
)
def test_heartbeats(hook: Hook) -> None:
    assert HeartbeatRules(learns=True, autoresume=True).handle(hook) == [BEAT]


@promise("lightning 4.1", "Loading a checkpoint sends none")
def test_no_heartbeat() -> None:
    assert HeartbeatRules(learns=True, autoresume=True).handle(LOAD) == []


def rules_after(hooks: Sequence[Hook], *, learns: bool = True) -> HeartbeatRules:
    rules = HeartbeatRules(learns=learns, autoresume=True)
    for hook in hooks:
        rules.handle(hook)
    return rules


RESUMED = (LOAD, BATCH, SAVE, BATCH)


@promise("lightning 4.1", "`teardown`: the flag file, a heartbeat, the update, then shutdown")
def test_teardown() -> None:
    order = rules_after(RESUMED).torn_down(has_reached_end=True)
    assert order == [FLAG, BEAT, LEARN, LEAVE]


@promise(
    "lightning 4.1", "`on_exception`: a heartbeat, maybe the update, then shutdown; never the flag"
)
def test_on_exception() -> None:
    assert rules_after(RESUMED).raised(is_clean_stop=True) == [BEAT, LEARN, LEAVE]
    assert rules_after(RESUMED).raised(is_clean_stop=False) == [BEAT, LEAVE]


@promises(
    "lightning 4.2",
    "hooks, learns",
    {
        "Learned from a run that loaded, and saved between heartbeats": (RESUMED, True),
        "Not from scratch: the first job loaded no checkpoint": ((BATCH, SAVE, BATCH), False),
        "Not without a save": ((LOAD, BATCH, BATCH), False),
        "Not with a save before any heartbeat": ((LOAD, SAVE, BATCH, BATCH), False),
        "Not from fewer than two iterations": ((LOAD, BATCH, SAVE), False),
    },
)
def test_learned(hooks: Sequence[Hook], learns: bool) -> None:
    assert (LEARN in rules_after(hooks).torn_down(has_reached_end=False)) is learns


@promise("lightning 4.2", "Only with `calculate_timeouts`")
def test_learned_if_asked() -> None:
    rules = rules_after(RESUMED, learns=False)
    assert LEARN not in rules.torn_down(has_reached_end=False)


# ---------------------------------------------------------------- sections
def job(first: int, last: int, saves: set[int], *, resumed: bool) -> tuple[SectionRules, int]:
    """A training of the documents' example: its rules, and how many updates it made before its end.

    Lightning calls the callback that saves after the others.
    """
    rules = SectionRules((SETUP, STEP, CHECKPOINTING))
    if resumed:
        rules.loaded()
    updates = 0
    for step in range(first, last + 1):
        updates += rules.iteration_ended(step)
        if step in saves:
            rules.saved(step)
    return rules, updates


@promise(
    "lightning 5.4", "Steps 1 to 100, saves at 50, 75 and 100: three updates, of steps and saves"
)
def test_first_job() -> None:
    rules, updates = job(1, 100, {50, 75, 100}, resumed=False)
    last = rules.selection(is_final=True)
    assert updates + 1 == 3
    assert (set(last.sections), last.with_outside) == ({STEP, CHECKPOINTING}, False)


@promise(
    "lightning 5.4", "Resumed to 200, saves at 150 and 200: two updates, of all, and out of section"
)
def test_second_job() -> None:
    rules, updates = job(101, 200, {150, 200}, resumed=True)
    last = rules.selection(is_final=True)
    assert updates + 1 == 2
    assert (set(last.sections), last.with_outside) == ({SETUP, STEP, CHECKPOINTING}, True)


@promise("lightning 5.3", "`step` needs more than 16 iterations of this run")
def test_steps() -> None:
    for iterations, learned in ((16, False), (17, True)):
        rules, _ = job(1, iterations, set(), resumed=False)
        assert (STEP in rules.selection(is_final=True).sections) is learned


@promise("lightning 5.3", "A save at global step 0 does not count")
def test_save_at_0() -> None:
    rules = SectionRules((SETUP, STEP, CHECKPOINTING))
    rules.saved(0)
    assert CHECKPOINTING not in rules.selection(is_final=True).sections


@promise("lightning 5.3", "Asynchronous saves: `checkpointing` is not learned, out of section is")
def test_asynchronous() -> None:
    rules = SectionRules((SETUP, STEP, CHECKPOINTING), is_saving_async=True)
    rules.loaded()
    for step in range(1, 20):
        rules.iteration_ended(step)
    rules.saved(19)
    last = rules.selection(is_final=True)
    assert (set(last.sections), last.with_outside) == ({SETUP, STEP}, True)


@promise(
    "lightning 5.1", "`checkpointing` may be entered again: the outermost call opens and closes it"
)
def test_outermost() -> None:
    calls = OpenSections()
    entered = [calls.enter(CHECKPOINTING), calls.enter(CHECKPOINTING)]
    left = [calls.leave(CHECKPOINTING), calls.leave(CHECKPOINTING)]
    assert (entered, left) == ([True, False], [False, True])


@promise("lightning 5.1", "A `step` within a `step` is a RuntimeError")
def test_step_in_step() -> None:
    calls = OpenSections()
    calls.enter(STEP)
    with pytest.raises(RuntimeError):
        calls.enter(STEP)


# ---------------------------------------------------------------- the callbacks
@pytest.fixture
def ptl() -> Any:
    if not any(find_spec(name) for name in ("lightning", "pytorch_lightning")):
        pytest.skip("needs Lightning: make test-trainers")
    from nvidia_resiliency_ext import ptl_resiliency

    return ptl_resiliency


@promise("lightning 2", "File names and folder of the learned timeouts")
def test_constants(ptl: Any) -> None:
    beats, sections = ptl.FaultToleranceCallback, ptl.FaultToleranceSectionsCallback
    assert (beats.TIMEOUTS_FILENAME, sections.TIMEOUTS_FILENAME) == (
        "_ft_state.json",
        "_ft_state_.json",
    )
    assert {beats.FT_DIR_NAME, sections.FT_DIR_NAME} == {"ft_state"}
    assert sections.MIN_TR_ITERS_FOR_STEP_TIMEOUT_UPDATE == 16


@promise(
    "lightning 2", "The constructor needs no environment and no launcher; arguments by position"
)
def test_constructor(ptl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    for kind in (ptl.FaultToleranceCallback, ptl.FaultToleranceSectionsCallback):
        callback = kind(True, False, None, "/exp", "my.logger")
        assert (callback.autoresume, callback.calculate_timeouts) == (True, False)
        assert (callback.is_initialized, callback.fault_tol_client) == (False, None)


@promise(
    "lightning 3.1", "`autoresume` without `FAULT_TOL_FINISHED_FLAG_FILE`: RuntimeError in setup"
)
def test_flag_file(ptl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    with pytest.raises(RuntimeError, match="FAULT_TOL_FINISHED_FLAG_FILE"):
        ptl.FaultToleranceCallback(True, False).setup(None, None, stage="fit")


@promise("lightning 1", "In other stages than `fit` the callbacks are inert")
def test_inert(ptl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    for kind in (ptl.FaultToleranceCallback, ptl.FaultToleranceSectionsCallback):
        callback = kind(True, True)
        callback.setup(None, None, stage="test")
        callback.teardown(None, None, stage="test")
        assert not callback.is_initialized


@promises(
    "lightning 6",
    "given",
    {
        "A simulated fault may be a mapping": {"fault_type": "rank_killed", "base_delay": 1.0},
        "... or None": None,
    },
)
def test_simulated_faults(ptl: Any, given: Any) -> None:
    callback = ptl.FaultToleranceCallback(False, False, simulated_fault_params=given)
    params = callback.simulated_fault_params
    assert (params and params.fault_type) == (given and given["fault_type"])


@promise("lightning 6", "Anything else is a ValueError from the constructor")
def test_other_simulated_faults(ptl: Any) -> None:
    with pytest.raises(ValueError):
        ptl.FaultToleranceCallback(False, False, simulated_fault_params=3)
