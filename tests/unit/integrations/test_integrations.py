"""What the integrations share, without a trainer: sections, a file, a surrounded method."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
from types import SimpleNamespace

import pytest

from holdfast.fault_tolerance import _own_client as own_client
from holdfast.fault_tolerance import rank_monitor_client
from holdfast.fault_tolerance import timeouts_calc as calc_module
from holdfast.integrations import _training_sections as training_sections
from holdfast.integrations import simulated_fault
from holdfast.integrations._learned_file import load_timeouts
from holdfast.integrations._surround import surround
from holdfast.integrations.accelerate import watch
from holdfast.integrations.simulated_fault import SimulatedFaultParams, parse_fault
from holdfast.watch.rank import rank_progress
from tests.unit.fake_monitor import FakeMonitor, rank_environment

SECTIONS = {"setup": 600.0, "step": 60.0, "evaluation": 60.0, "checkpointing": 60.0}


@pytest.fixture
def monitor(tmp_path, monkeypatch):
    monitor = FakeMonitor(tmp_path, rank_section_timeouts=SECTIONS, learned_timeout_floor=1.0)
    ticks = itertools.count(1000.0, 0.001)  # else a pause of 0.2 s is a step that is learned from
    monkeypatch.setattr(rank_progress, "monotonic", lambda: next(ticks))
    for name, value in rank_environment(monitor, RANK="0").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(own_client._Own, "client", None)
    monkeypatch.setattr(rank_monitor_client._Process, "has_begun", False)
    monkeypatch.setattr(calc_module, "max_over_ranks", list)
    monkeypatch.setattr(training_sections, "has_process_group", lambda: True)
    yield monitor
    if own_client._Own.client is not None:
        own_client._Own.client.shutdown_workload_monitoring()
    monitor.close()


class Accelerator:
    """Notes which sections are open while it works."""

    def __init__(self, monitor: FakeMonitor) -> None:
        self._monitor = monitor
        self.seen: list[tuple[str, list[str]]] = []

    def note(self, what: str) -> None:
        self.seen.append((what, [name for name in SECTIONS if self._monitor.slot(name)[0]]))

    def save_state(self, folder: str) -> str:
        self.note("save")
        return folder

    def load_state(self, folder: str) -> None:
        self.note("load")


def test_a_loop_is_setup_then_steps_with_the_loader_outside(monitor, tmp_path) -> None:
    """A save and an evaluation pause the step that they are in."""
    accelerator = Accelerator(monitor)
    note = accelerator.note

    def batches():
        for number in range(2):
            note("loader")
            yield number

    with watch(accelerator, tmp_path) as training:
        accelerator.load_state("out")
        for _ in training.steps(batches()):
            note("body")
            assert accelerator.save_state("out") == "out"
            with training.evaluation():
                note("evaluation")
            note("body")
        note("after")
    body = [
        ("body", ["step"]),
        ("save", ["checkpointing"]),
        ("evaluation", ["evaluation"]),
        ("body", ["step"]),
    ]
    assert accelerator.seen == [
        ("load", ["setup"]),
        ("loader", ["setup"]),
        *body,
        ("loader", []),
        *body,
        ("after", []),
    ]
    assert "save_state" not in vars(accelerator)
    assert not own_client.client().section_timeouts.were_calculated


def steps(training, n: int, accelerator: Accelerator, save_at: int = 0) -> None:
    for number in training.steps(range(1, n + 1)):
        if number == save_at:
            accelerator.save_state("out")


def test_timeouts_are_learned_after_a_save_and_kept_beside_the_checkpoints(
    monitor, tmp_path, monkeypatch
) -> None:
    """The next run takes them over; the one after a load learns all that it measured."""
    accelerator, out = Accelerator(monitor), tmp_path / "out"
    with watch(accelerator, out) as training:
        own_client.client()._clocks["step"].longest_s = 13.0
        steps(training, 20, accelerator, save_at=18)
        own = json.loads((out / "ft_state.json").read_text())["current_timeouts"]["section"]
        assert own["calculated_sections"] == ["checkpointing", "step"]
        assert own["section"] == {**SECTIONS, "step": 65.0}, "60 s were given for the others"
    monkeypatch.setattr(rank_monitor_client._Process, "has_begun", False)  # another job
    with watch(accelerator, out) as training:
        assert own_client.client().section_timeouts.section["step"] == 65.0
        accelerator.load_state("out")
        steps(training, 20, accelerator, save_at=18)
        with training.evaluation():
            pass
    own = json.loads((out / "ft_state.json").read_text())["current_timeouts"]["section"]
    assert own["calculated_sections"] == sorted(SECTIONS)
    assert own["is_out_of_section_calculated"]


def test_a_second_training_in_a_process_shortens_nothing(monitor, tmp_path) -> None:
    """Its setup finds caches full: a job had learned 30 s from that, and the next took 50 s."""
    accelerator, out = Accelerator(monitor), tmp_path / "out"
    for _ in range(2):
        with watch(accelerator, out) as training:
            accelerator.load_state("out")
            steps(training, 20, accelerator, save_at=18)
            section = own_client.client().section_timeouts.section
            assert all(section[name] >= given_s for name, given_s in SECTIONS.items())


def test_an_exception_learns_nothing_and_leaves_the_monitor(monitor, tmp_path) -> None:
    """Other ranks may be gone. A loop that breaks has ended well."""
    accelerator = Accelerator(monitor)

    def fail() -> None:
        with watch(accelerator, tmp_path) as training:
            for number in training.steps(range(40)):
                if number == 20:
                    accelerator.save_state("out")
                    raise ValueError("loss is nan")

    with pytest.raises(ValueError, match="nan"):
        fail()
    assert not (tmp_path / "ft_state.json").exists()
    assert monitor.operations()[-1] == "leavemonitor"

    with watch(accelerator, tmp_path) as training:
        for number in training.steps(range(40)):
            if number == 20:
                accelerator.save_state("out")
                break
        accelerator.note("after")
    assert accelerator.seen[-1] == ("after", [])
    assert (tmp_path / "ft_state.json").exists()


def test_nothing_is_learned_or_written_without_a_launcher(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(own_client._Own, "client", None)
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    accelerator = SimpleNamespace(save_state=lambda: 1, load_state=lambda: 2)
    with watch(accelerator, tmp_path) as training:
        assert accelerator.load_state() == 2
        for _ in training.steps(range(40)):
            assert accelerator.save_state() == 1
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the file
@pytest.mark.parametrize("text", ['{"current', "[1]", '{"current_timeouts": {"section": 3}}'])
def test_a_damaged_file_is_left_out_with_a_warning(monitor, tmp_path, caplog, text) -> None:
    """Every restart would fail in it otherwise."""
    (tmp_path / "file").write_text(text)
    client = own_client.client()
    assert not load_timeouts(client, tmp_path / "file", logging.getLogger("test"))
    assert "timeouts learned before are not used" in caplog.text
    assert client.section_timeouts.section == SECTIONS


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_no_file_and_an_empty_one_are_nothing_learned(monitor, tmp_path, caplog, text) -> None:
    if text is not None:
        (tmp_path / "file").write_text(text)
    assert not load_timeouts(own_client.client(), tmp_path / "file", logging.getLogger("test"))
    assert caplog.records == []


# ---------------------------------------------------------------- a surrounded method
class Strategy:
    def step(self, value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value + 1


def test_a_surrounded_method_does_the_same_and_is_restored() -> None:
    """Also where it raises, and where the instance had its own."""
    calls: list[str] = []

    @contextlib.contextmanager
    def around():
        calls.append("in")
        try:
            yield
        finally:
            calls.append("out")

    strategy = Strategy()
    restore = surround(strategy, "step", around)
    assert strategy.step(1) == 2
    with pytest.raises(ValueError, match="-1"):
        strategy.step(-1)
    assert calls == ["in", "out"] * 2
    restore()
    assert vars(strategy) == {}

    own = strategy.step = lambda value: value
    surround(strategy, "step", around)()
    assert strategy.step is own


def test_a_method_that_was_wrapped_again_is_left_as_it_is() -> None:
    strategy = Strategy()
    restore = surround(strategy, "step", contextlib.nullcontext)
    inner = strategy.step
    outer = strategy.step = lambda value: inner(value) * 10
    restore()
    assert strategy.step is outer
    assert strategy.step(1) == 20


# ---------------------------------------------------------------- simulated faults
@pytest.mark.parametrize(
    ("given", "fault_type"),
    [
        (None, None),
        ({"fault_type": "rank_hung", "base_delay": 1}, "rank_hung"),
        (SimulatedFaultParams("random", 1.0), "random"),
    ],
)
def test_a_simulated_fault_is_an_instance_or_a_mapping(given, fault_type) -> None:
    parsed = parse_fault(given)
    assert (parsed and parsed.fault_type) == fault_type


@pytest.mark.parametrize(
    "given",
    [3, {"fault_type": "rank_killed"}, {"fault_type": "meteor", "base_delay": 1}, {"x": 1}],
)
def test_anything_else_is_an_error_at_once(given) -> None:
    """Not at the set-up of one rank, when the job runs."""
    with pytest.raises(ValueError, match=r"simulated_fault_params is|fault_type is 'meteor'"):
        parse_fault(given)


def test_a_simulated_fault_announces_itself_and_signals_this_process(monkeypatch, capsys) -> None:
    killed = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    monkeypatch.setattr(simulated_fault, "has_process_group", lambda: False)
    monkeypatch.setattr(
        simulated_fault.threading,
        "Timer",
        lambda delay, act, args: SimpleNamespace(start=lambda: act(*args)),
    )
    simulated_fault.arm_fault(SimulatedFaultParams("rank_killed", 0.0))
    said = capsys.readouterr()
    for text in said:
        assert "Simulating fault: rank_killed; rank to fail: 0" in text
    assert killed == [(os.getpid(), signal.SIGKILL)]
