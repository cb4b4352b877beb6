"""When callbacks of trainers send heartbeats, learn timeouts, and mark a training as complete."""

from __future__ import annotations

import pytest

from holdfast.integrations._pure.heartbeat_rules import Do, HeartbeatRules, Hook
from holdfast.integrations._pure.run_end import (
    has_reached_end,
    is_clean_stop,
    is_training_completed,
)
from holdfast.integrations._pure.section_rules import (
    CHECKPOINTING,
    EVALUATION,
    SETUP,
    STEP,
    OpenSections,
    SectionRules,
)

BATCH, SAVE, LOAD = Hook.TRAIN_BATCH_END, Hook.CHECKPOINT_SAVED, Hook.CHECKPOINT_LOADED
FLAG, BEAT, LEARN, LEAVE = Do.WRITE_FLAG, Do.SEND_HEARTBEAT, Do.LEARN, Do.LEAVE
LIGHTNINGS = (SETUP, STEP, CHECKPOINTING)


# ---------------------------------------------------------------- how a run ends
@pytest.mark.parametrize(
    ("error", "is_sigterm", "clean"),
    [
        (SystemExit(0), False, True),
        (SystemExit(), False, True),
        (SystemExit(1), False, False),
        (SystemExit("disk full"), False, False),
        (SystemExit(), True, False),
        (KeyboardInterrupt(), False, False),
        (ValueError("loss is nan"), False, False),
        (None, False, False),
    ],
)
def test_only_an_exit_without_a_code_is_clean(error, is_sigterm, clean) -> None:
    """And not one that SIGTERM caused: other ranks may be gone, so nothing collective follows."""
    assert is_clean_stop(error, is_sigterm=is_sigterm) is clean


@pytest.mark.parametrize(
    ("max_steps", "global_step", "max_epochs", "current_epoch", "reached"),
    [
        (100, 99, None, 3, False),
        (100, 100, None, 0, True),
        (-1, 100, 2, 1, False),
        (-1, 100, 2, 2, True),
        (None, 100, -1, 5, False),
        (0, 0, 0, 0, False),
    ],
)
def test_a_training_ends_at_its_steps_or_epochs(
    max_steps, global_step, max_epochs, current_epoch, reached
) -> None:
    assert reached is has_reached_end(
        max_steps=max_steps,
        global_step=global_step,
        max_epochs=max_epochs,
        current_epoch=current_epoch,
    )


@pytest.mark.parametrize(
    ("iterations", "failed", "at_end", "complete"),
    [
        (0, False, False, True),
        (1, False, False, True),
        (2, False, False, False),
        (2, False, True, True),
        (0, True, False, False),
        (1, True, False, False),
    ],
)
def test_a_run_that_found_nothing_to_do_is_complete(iterations, failed, at_end, complete) -> None:
    """One iteration is none: a run whose max_time is over makes it."""
    assert complete is is_training_completed(
        iterations=iterations, has_failed=failed, has_reached_end=at_end
    )


# ---------------------------------------------------------------- heartbeats
@pytest.mark.parametrize("hook", [hook for hook in Hook if hook is not LOAD])
def test_every_hook_but_a_load_sends_a_heartbeat(hook) -> None:
    assert HeartbeatRules(learns=True, autoresume=True).handle(hook) == [BEAT]


def test_a_load_sends_none() -> None:
    """The time until the first heartbeat covers setup and load."""
    assert HeartbeatRules(learns=True, autoresume=True).handle(LOAD) == []


FULL = (LOAD, Hook.TRAIN_START, BATCH, SAVE, BATCH)


@pytest.mark.parametrize(
    ("hooks", "learned"),
    [
        (FULL, True),
        ((LOAD, BATCH, BATCH, SAVE), True),
        ((BATCH, SAVE, BATCH), False),
        ((LOAD, BATCH, BATCH), False),
        ((LOAD, BATCH, SAVE), False),
        ((SAVE, LOAD, BATCH, BATCH), False),
        ((SAVE, LOAD, BATCH, BATCH, SAVE), True),
        ((LOAD, Hook.VALIDATION_END, SAVE, BATCH, BATCH), True),
        ((), False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else "-".join(h.name for h in value),
)
def test_timeouts_are_learned_from_a_run_with_a_load_and_a_save(hooks, learned) -> None:
    """And two iterations; the save with a heartbeat before it, in this run."""
    for end in ("torn down", "clean"):
        rules = HeartbeatRules(learns=True, autoresume=False)
        for hook in hooks:
            rules.handle(hook)
        if end == "torn down":
            actions = rules.torn_down(has_reached_end=False)
        else:
            actions = rules.raised(is_clean_stop=True)
        assert actions == ([BEAT, LEARN, LEAVE] if learned else [BEAT, LEAVE])


def after(*hooks: Hook, learns: bool = True, autoresume: bool = True) -> HeartbeatRules:
    rules = HeartbeatRules(learns=learns, autoresume=autoresume)
    for hook in hooks:
        rules.handle(hook)
    return rules


def test_a_failure_learns_nothing_and_writes_no_flag() -> None:
    assert after(*FULL).raised(is_clean_stop=False) == [BEAT, LEAVE]
    assert after().raised(is_clean_stop=False) == [BEAT, LEAVE]


def test_nothing_is_learned_where_it_is_not_asked_for() -> None:
    assert after(*FULL, learns=False).torn_down(has_reached_end=False) == [BEAT, LEAVE]


def test_the_flag_comes_first_and_only_with_autoresume() -> None:
    """Learning is a collective, which can fail; the flag says what is true already."""
    assert after(*FULL).torn_down(has_reached_end=True) == [FLAG, BEAT, LEARN, LEAVE]
    assert after().torn_down(has_reached_end=False) == [FLAG, BEAT, LEAVE]
    assert after(BATCH, BATCH).torn_down(has_reached_end=False) == [BEAT, LEAVE]
    assert after(autoresume=False).torn_down(has_reached_end=True) == [BEAT, LEAVE]


# ---------------------------------------------------------------- sections
def run(rules: SectionRules, iterations: range, saves: set[int]) -> list[tuple[str, ...]]:
    """A trainer that saves after the hook of an iteration; what was learned on the way."""
    learned = []
    for step in iterations:
        if rules.iteration_ended(step):
            learned.append(rules.selection(is_final=False).sections)
        if step in saves:
            rules.saved(step)
    return learned


def test_the_first_job_learns_steps_and_saves() -> None:
    """The example of the specification: saves at 50, 75 and 100 are three updates."""
    rules = SectionRules(LIGHTNINGS)
    learned = run(rules, range(1, 101), {50, 75, 100})
    assert learned == [(STEP, CHECKPOINTING)] * 2

    last = rules.selection(is_final=True)
    assert (last.sections, last.with_outside) == ((STEP, CHECKPOINTING), False)
    assert last.reasons == ("setup: no checkpoint was loaded in this run",)


def test_a_resumed_job_learns_all() -> None:
    rules = SectionRules(LIGHTNINGS)
    rules.loaded()
    learned = run(rules, range(101, 201), {150, 200})
    assert learned == [LIGHTNINGS]

    last = rules.selection(is_final=True)
    assert (last.sections, last.with_outside, last.reasons) == (LIGHTNINGS, True, ())


def test_the_time_outside_is_not_learned_from_a_run_that_saved_nothing() -> None:
    """Saves are followed by work outside of sections: old checkpoints, logs, a barrier."""
    rules = SectionRules(LIGHTNINGS)
    rules.loaded()
    run(rules, range(101, 201), set())
    chosen = rules.selection(is_final=True)
    assert (chosen.sections, chosen.with_outside) == ((SETUP, STEP), False)


@pytest.mark.parametrize(("iterations", "learned"), [(16, False), (17, True)])
def test_steps_are_learned_after_more_than_16_of_this_run(iterations, learned) -> None:
    rules = SectionRules(LIGHTNINGS)
    rules.loaded()
    run(rules, range(1000, 1000 + iterations), {1001})
    chosen = rules.selection(is_final=True)
    assert (STEP in chosen.sections, chosen.with_outside) == (learned, learned)


def test_a_save_before_the_first_step_does_not_count() -> None:
    rules = SectionRules(LIGHTNINGS)
    rules.saved(0)
    assert run(rules, range(1, 20), set()) == []
    assert rules.selection(is_final=True).sections == (STEP,)


def test_asynchronous_saves_are_not_measured_but_allow_the_time_outside() -> None:
    rules = SectionRules(LIGHTNINGS, is_saving_async=True)
    rules.loaded()
    assert run(rules, range(1, 20), {5}) == [(SETUP,)]
    chosen = rules.selection(is_final=True)
    assert (chosen.sections, chosen.with_outside) == ((SETUP, STEP), True)


def test_only_sections_that_the_job_has_are_learned() -> None:
    """Hugging Face's trainer has evaluations, Lightning's validation is a step."""
    rules = SectionRules((STEP, EVALUATION))
    rules.loaded()
    assert rules.selection(is_final=True).sections == ()
    rules.evaluated()
    assert rules.selection(is_final=True).sections == (EVALUATION,)


def test_the_outermost_call_of_checkpointing_opens_and_closes_it() -> None:
    calls = OpenSections()
    assert calls.enter(CHECKPOINTING)
    assert not calls.enter(CHECKPOINTING)
    assert not calls.leave(CHECKPOINTING)
    assert calls.leave(CHECKPOINTING)


def test_a_step_within_a_step_is_an_error_and_leaves_the_outer_one() -> None:
    calls = OpenSections()
    calls.enter(STEP)
    with pytest.raises(RuntimeError, match="'step' was entered again before it ended"):
        calls.enter(STEP)
    assert calls.leave(STEP)
    assert calls.enter(STEP)
