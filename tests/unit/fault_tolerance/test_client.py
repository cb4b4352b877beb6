"""The client of a rank, against a scripted monitor over a real socket and a real page."""

import contextlib
import gc
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from holdfast.base.processes.proc import process_state, start_ticks
from holdfast.fault_tolerance import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance import rank_monitor_client as client_module
from holdfast.fault_tolerance import timeouts_calc as calc_module
from holdfast.fault_tolerance.data import RankInfo
from holdfast.page.pure import page as layout
from holdfast.watch.rank import auto_heartbeat
from holdfast.watch.rank import monitor_link as link_module
from holdfast.watch.rank import rank_progress as progress_module
from holdfast.watch.rank.auto_heartbeat import StepClient
from holdfast.watch.rank.once_per_node import is_first_on_node
from tests.unit.fake_monitor import BOUND_S, FakeMonitor, rank_environment
from tests.waiting import until

TOTALS = layout.TOTAL_S, layout.TIMES, layout.FIRST_AT, layout.CLOSED_AT
SECTIONS = {"setup": 600.0, "step": 60.0, "save": None}


@pytest.fixture
def make_monitor(tmp_path, monkeypatch, small_heap):
    """Start a monitor and point the environment at it, in a process that had no client yet."""
    made = []
    monkeypatch.setattr(client_module._Process, "has_begun", False)

    def make(**cfg) -> FakeMonitor:
        monitor = FakeMonitor(tmp_path, **{"rank_section_timeouts": SECTIONS, **cfg})
        made.append(monitor)
        for name, value in rank_environment(monitor).items():
            monkeypatch.setenv(name, value)
        return monitor

    yield make
    gc.collect()  # clients of failed tests hang up, or the monitor would serve them for ever
    for monitor in made:
        monitor.close()


@pytest.fixture
def monitor(make_monitor):
    return make_monitor()


@pytest.fixture
def client(monitor):
    client = RankMonitorClient()
    client.init_workload_monitoring()
    yield client
    client.shutdown_workload_monitoring()


@pytest.fixture
def one_rank(monkeypatch):
    """A process group of one: the maxima of all ranks are our own."""
    monkeypatch.setattr(calc_module, "max_over_ranks", list)


# ---------------------------------------------------------------------- life


def test_the_page_adds_up_what_has_ended(monitor, client, monkeypatch) -> None:
    """Times, seconds and two instants; of short ones once in a millisecond, of long ones always."""
    now = [1000.0]
    monkeypatch.setattr(progress_module, "monotonic", lambda: now[0])

    def step(seconds: float) -> None:
        with client.section("step"):
            now[0] += seconds

    def shown() -> list[float]:
        first = layout.slot(monitor.page().names().index("step"))
        return [monitor.word(first + fact) for fact in (*TOTALS, layout.LONGEST)]

    step(2.0)
    assert shown() == [2.0, 1.0, 1000.0, 1002.0, 2.0]
    for _ in range(5):
        step(2.0**-12)  # a quarter of a millisecond
    assert shown() == [2.0 + 5 * 2.0**-12, 6.0, 1000.0, 1002.0 + 5 * 2.0**-12, 2.0]
    step(2.0**-12)
    assert shown()[1] == 6.0
    step(3.0)
    assert shown()[1] == 8.0
    assert shown()[4] == 3.0


def test_init_arms_the_page_and_tells_the_monitor(monitor, client) -> None:
    """Who, which limits, which sections; then "armed"."""
    assert monitor.operations() == ["hello", "armed"]
    hello = monitor.heard[0]
    assert (hello["rank"], hello["pid"], hello["resume"]) == (3, os.getpid(), False)

    page = monitor.page()
    words = page.words
    assert page.names() == ["setup", "step", "save"]
    assert 0.0 < words[layout.ARMED_AT] <= time.monotonic()
    assert words[layout.OUTSIDE_SINCE] == words[layout.ARMED_AT]
    assert (words[layout.PID], words[layout.GLOBAL_RANK], words[layout.LOCAL_RANK]) == (
        os.getpid(),
        3.0,
        1.0,
    )
    assert words[layout.START_TICKS] == start_ticks(os.getpid())
    assert words[layout.LIMIT_INITIAL] == 3600.0
    assert words[layout.LIMIT_HEARTBEAT] == 2700.0
    assert words[layout.LIMIT_OUTSIDE] == math.inf
    assert words[layout.LIMITS_VERSION] % 2 == 0
    assert words[layout.LIMITS_VERSION] > 0
    assert words[layout.ITERATION] == -1.0
    page.close()
    assert monitor.slot("step") == [0.0, -1.0, 60.0, 0.0]
    assert monitor.slot("save") == [0.0, -1.0, math.inf, 0.0]

    assert client.is_initialized
    assert client.cfg.rank_section_timeouts == SECTIONS
    assert client.rank_info.global_rank == 3
    assert (client.hb_timeouts.initial, client.hb_timeouts.were_calculated) == (3600.0, False)
    assert client.section_timeouts.section == SECTIONS


def test_before_init_the_client_is_empty_and_refuses(monkeypatch) -> None:
    """Nothing is connected by construction, and every refusal says what to do."""
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    client = RankMonitorClient()
    assert not client.is_initialized
    assert client.hb_timeouts is client.section_timeouts is client.cfg is client.rank_info is None
    client.shutdown_workload_monitoring()
    for call in (
        client.send_heartbeat,
        lambda: client.start_section("step"),
        lambda: client.end_section("step"),
        client.end_all_sections,
        client.section("step").__enter__,
        client.state_dict,
        client.calculate_and_set_hb_timeouts,
        client.calculate_and_set_section_timeouts,
    ):
        with pytest.raises(RankMonitorClientError, match="call init_workload_monitoring"):
            call()


def test_what_the_environment_lacks_is_named(monkeypatch, tmp_path) -> None:
    """Rank, monitor, and a monitor that is not there; old exception types still match."""
    for name in ("RANK", "FT_RANK_MONITOR_IPC_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    client = RankMonitorClient()
    with pytest.raises(RuntimeError, match="RANK is not set; start the job with") as caught:
        client.init_workload_monitoring()
    assert isinstance(caught.value, RankMonitorClientError)

    monkeypatch.setenv("RANK", "first")
    with pytest.raises(RuntimeError, match="RANK is 'first', not a number"):
        client.init_workload_monitoring()

    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RankMonitorClientError, match="FT_RANK_MONITOR_IPC_SOCKET is not set"):
        client.init_workload_monitoring()

    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(tmp_path / "none"))
    with pytest.raises(OSError, match="rank 0: its monitor cannot be reached") as caught:
        client.init_workload_monitoring()
    assert isinstance(caught.value, RankMonitorClientError)
    assert caught.value.errno == 2
    assert not client.is_initialized


def test_a_second_init_is_refused_and_changes_nothing(monitor, client) -> None:
    """Monitoring goes on."""
    armed_at = monitor.word(layout.ARMED_AT)
    with pytest.raises(RankMonitorClientError, match=r"init_workload_monitoring.* twice"):
        client.init_workload_monitoring()
    assert client.is_initialized
    assert monitor.word(layout.ARMED_AT) == armed_at


@pytest.mark.parametrize("operation", ["hello", "armed"])
def test_a_refused_init_leaves_nothing_behind(monitor, operation) -> None:
    """Neither a connection nor an armed page; the next try may work."""
    client = RankMonitorClient()
    monitor.reply[operation] = {"op": "error", "text": "somebody else is here"}
    with pytest.raises(RankMonitorClientError, match="answered 'somebody else is here'"):
        client.init_workload_monitoring()
    assert not client.is_initialized
    assert monitor.word(layout.ARMED_AT) == 0.0
    assert monitor.left.wait(BOUND_S)

    client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()


def test_a_rank_without_a_page_runs_unwatched(monitor, caplog) -> None:
    """There was no space for it: training matters more. One error says so."""
    monitor.page_path = None
    client = RankMonitorClient()

    client.init_workload_monitoring()
    client.send_heartbeat()
    with client.section("step"):
        pass
    client.shutdown_workload_monitoring()

    assert "rank 3 runs unwatched" in caplog.text
    assert monitor.operations() == ["hello", "armed", "leavemonitor"]


def test_shutdown_disarms_first_and_says_bye(monitor, client) -> None:
    """A monitor that looks at this moment finds nobody to judge."""
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert monitor.operations() == ["hello", "armed", "leavemonitor"]
    assert monitor.word(layout.ARMED_AT) == 0.0
    assert not client.is_initialized
    assert client.cfg is None
    with pytest.raises(RankMonitorClientError):
        client.send_heartbeat()


def test_the_page_says_since_when_the_rank_has_left(monitor, client) -> None:
    """Its process is expected to end, unless it initialises again."""
    assert monitor.word(layout.LEFT_AT) == 0.0
    client.shutdown_workload_monitoring()
    assert 0.0 < monitor.word(layout.LEFT_AT) <= time.monotonic()

    client.init_workload_monitoring()
    assert monitor.word(layout.LEFT_AT) == 0.0


def test_shutdown_never_raises(monitor, client, monkeypatch) -> None:
    """Not when the monitor is silent, and not when it is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(link_module, "_ANSWER_S", 0.01)
        monitor.reply["leavemonitor"] = "silence"
        client.shutdown_workload_monitoring()

    client.init_workload_monitoring()
    monitor.reply["leavemonitor"] = "hang up"
    client.shutdown_workload_monitoring()
    assert not client.is_initialized


def test_sections_left_open_at_shutdown_are_mentioned(client, caplog) -> None:
    """Once, with the remedy."""
    client.start_section("step")
    client.shutdown_workload_monitoring()
    assert "sections ['step'] are open; call end_all_sections()" in caplog.text


def test_init_after_shutdown_starts_from_scratch(monitor, client) -> None:
    """Clocks and statistics are new; limits come from the monitor and count as configured."""
    client.send_heartbeat()
    client.send_heartbeat()
    client.start_section("step")
    first_armed_at = monitor.word(layout.ARMED_AT)
    client.shutdown_workload_monitoring()

    monitor.cfg["rank_heartbeat_timeout"] = 77.0
    monitor.cfg["rank_section_timeouts"] = {**SECTIONS, "step": 33.0}
    monitor.learned = {"heartbeat": True, "out_of_section": False, "sections": ["step"]}
    client.init_workload_monitoring()

    assert monitor.word(layout.ARMED_AT) > first_armed_at
    assert monitor.word(layout.HEARTBEAT_AT) == 0.0
    assert monitor.word(layout.LONGEST_GAP) == -1.0
    assert monitor.slot("step") == [0.0, -1.0, 33.0, 1.0]  # the monitor may still raise it
    assert monitor.slot("setup")[3] == 0.0
    assert monitor.word(layout.LEARNED_HEARTBEAT) == 1.0
    assert client.hb_timeouts.subsequent == 77.0
    assert client.hb_timeouts.were_calculated is False
    assert client.section_timeouts.calculated_sections == set()
    client.start_section("step")


# ---------------------------------------------------------------------- heartbeats and sections


@pytest.mark.parametrize("section", ["step", "no such section"])
def test_the_page_says_that_sections_are_used(monitor, client, section) -> None:
    """Of a section that is not timed, too: its rank is no less alive. Anew after each init."""
    assert monitor.word(layout.SECTION_ENDS_INITIAL) == 1.0
    assert monitor.word(layout.USED_SECTIONS) == 0.0
    client.start_section(section)
    assert monitor.word(layout.USED_SECTIONS) == 1.0
    client.shutdown_workload_monitoring()

    client.init_workload_monitoring()
    assert monitor.word(layout.USED_SECTIONS) == 0.0


def test_no_first_heartbeat_of_a_spare_is_due_by_default(monitor, client) -> None:
    """It waits in the Wrapper until a rank is lost."""
    assert monitor.word(layout.SECTION_ENDS_INITIAL) == 1.0
    progress_module.stand_by()
    assert monitor.word(layout.USED_SECTIONS) == 1.0


def test_a_rank_that_loses_its_place_is_not_awaited_until_it_has_one_again(monitor, client) -> None:
    """Nor is the time in between the longest gap of its heartbeats, or of its steps."""
    client.send_heartbeat()
    client_module.count_step()
    progress_module.stand_by()
    words = layout.HEARTBEAT_AT, layout.STEPS_BESIDE
    assert [monitor.word(each) for each in words] == [0.0, 0.0]
    progress_module.end_standby()
    assert monitor.word(layout.HEARTBEAT_AT) > 0.0
    client.send_heartbeat()
    client_module.count_step()
    assert all(monitor.word(each) > 0.0 for each in words)
    longest = layout.LONGEST_GAP, layout.LONGEST_STEP
    assert [monitor.word(each) for each in longest] == [-1.0, -1.0]


def test_where_a_first_heartbeat_is_due_by_a_given_timeout_a_spare_owes_the_next_one(
    make_monitor, one_rank
) -> None:
    """Its time would count from the start of the rank, which is long ago."""
    monitor = make_monitor(initial_rank_heartbeat_timeout=3600.0)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    progress_module.stand_by()
    assert monitor.word(layout.HEARTBEAT_AT) > 0.0
    client.shutdown_workload_monitoring()


def test_a_spare_that_is_watched_by_its_steps_is_so_again_with_the_next(monitor) -> None:
    """It makes none meanwhile, and no stall is reported of it."""
    client = StepClient()
    client.init_workload_monitoring()
    client_module.count_step()
    progress_module.stand_by()
    assert monitor.word(layout.STEPS) == 0.0
    progress_module.end_standby()
    assert monitor.word(layout.HEARTBEAT_AT) == 0.0
    client_module.count_step()
    assert monitor.word(layout.STEPS) == 1.0
    client.shutdown_workload_monitoring()


@pytest.mark.parametrize("origin", ["configured", "loaded", "learned"])
def test_an_initial_limit_that_was_chosen_is_not_ended_by_a_section(
    make_monitor, one_rank, origin
) -> None:
    """By configuration, by a saved state, or by asking for it to be learned."""
    chosen = {"initial_rank_heartbeat_timeout": 3600.0} if origin == "configured" else {}
    monitor = make_monitor(**chosen)
    client = RankMonitorClient()
    if origin == "loaded":
        client.load_state_dict(STATE)
    client.init_workload_monitoring()
    if origin == "learned":
        client.send_heartbeat()
        client.send_heartbeat()
        client.calculate_and_set_hb_timeouts()
    assert monitor.word(layout.SECTION_ENDS_INITIAL) == 0.0
    client.shutdown_workload_monitoring()


def test_a_heartbeat_is_stored_and_its_gaps_are_measured(monitor, client) -> None:
    """The first interval and the others apart."""
    client.send_heartbeat()
    first = monitor.word(layout.HEARTBEAT_AT)
    assert first >= monitor.word(layout.ARMED_AT)
    assert monitor.word(layout.LONGEST_INITIAL) == first - monitor.word(layout.ARMED_AT)
    assert monitor.word(layout.LONGEST_GAP) == -1.0

    client.send_heartbeat()
    second = monitor.word(layout.HEARTBEAT_AT)
    assert second > first
    assert monitor.word(layout.LONGEST_GAP) == second - first


def test_sections_nest_and_overlap(monitor, client) -> None:
    """Each has its own clock; time outside starts when the last one closes."""
    client.start_section("setup")
    assert monitor.word(layout.OUTSIDE_SINCE) == 0.0
    client.start_section("step")
    client.end_section("setup")
    assert monitor.slot("setup")[0] == 0.0
    assert monitor.slot("step")[0] > 0.0
    assert monitor.word(layout.OUTSIDE_SINCE) == 0.0
    client.end_section("step")
    assert monitor.word(layout.OUTSIDE_SINCE) > monitor.word(layout.ARMED_AT)
    assert monitor.slot("setup")[1] > 0.0
    assert monitor.word(layout.LONGEST_OUTSIDE) > 0.0


def test_opening_twice_is_refused_and_the_first_opening_counts(monitor, client) -> None:
    """The message says since when it is open."""
    client.start_section("step")
    opened_at = monitor.slot("step")[0]
    with pytest.raises(RankMonitorClientError, match="rank 3: section 'step' is open already"):
        client.start_section("step")
    assert monitor.slot("step")[0] == opened_at


def test_closing_what_is_not_open_is_refused(client) -> None:
    """The message says what is open."""
    client.start_section("setup")
    with pytest.raises(RankMonitorClientError, match=r"'step' is not open; open are \['setup'\]"):
        client.end_section("step")
    client.end_section("setup")
    with pytest.raises(RankMonitorClientError, match="'setup' is not open; open are none"):
        client.end_section("setup")


def test_end_all_sections_closes_everything(monitor, client) -> None:
    """And is allowed when nothing is open."""
    client.end_all_sections()
    for name in SECTIONS:
        client.start_section(name)
    client.end_all_sections()
    assert [monitor.slot(name)[0] for name in SECTIONS] == [0.0, 0.0, 0.0]
    assert monitor.word(layout.OUTSIDE_SINCE) > 0.0
    client.start_section("step")


def test_sections_that_a_function_left_open_are_closed_when_it_is_called_again(
    monitor, client
) -> None:
    """After a restart in place it would open them twice; those around the call stay."""
    client.start_section("setup")
    entered_at = time.monotonic()
    client.start_section("step")
    progress_module.end_sections_since(entered_at)
    assert monitor.slot("step")[0] == 0.0
    assert monitor.slot("setup")[0] > 0.0
    client.start_section("step")


def test_a_thread_that_saves_through_a_restart_may_end_its_section_after_that(client) -> None:
    """Its save is complete, and the restart has closed the section. Twice is an error again."""
    client.start_section("step")
    progress_module.end_sections_since(0.0)
    client.end_section("step")
    with pytest.raises(RankMonitorClientError, match="'step' is not open"):
        client.end_section("step")


def test_a_step_that_is_done_while_the_script_begins_to_report_does_not_fail(
    monitor, monkeypatch
) -> None:
    """The steps of an optimizer in another thread were the heartbeats until then."""
    steps = StepClient()
    steps.init_workload_monitoring()
    forget = steps._forget

    def forget_during_a_step() -> None:
        forget()
        steps.send_heartbeat()  # the step had found the page just before

    monkeypatch.setattr(steps, "_forget", forget_during_a_step)
    client = RankMonitorClient()

    client.init_workload_monitoring()

    assert not steps.is_initialized
    client.shutdown_workload_monitoring()


def test_steps_are_counted_for_whoever_reports(monitor) -> None:
    """For a client of the script's they are no heartbeats."""
    stepped = auto_heartbeat.begin()
    stepped()
    assert monitor.word(layout.STEPS) == 3.0  # one since init, and those of begin
    assert monitor.word(layout.HEARTBEAT_AT) > 0.0

    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert (monitor.word(layout.STEPS), monitor.word(layout.STEPS_BESIDE)) == (0.0, 0.0)
    for _ in range(3):
        stepped()
    assert monitor.word(layout.STEPS_BESIDE) == 3.0
    assert monitor.word(layout.STEPPED_AT) > monitor.word(layout.ARMED_AT)
    assert monitor.word(layout.LONGEST_STEP) >= 0.0
    assert (monitor.word(layout.STEPS), monitor.word(layout.HEARTBEAT_AT)) == (0.0, 0.0)

    client.shutdown_workload_monitoring()
    stepped()
    assert monitor.word(layout.STEPS_BESIDE) == 3.0


def test_steps_beside_a_client_are_counted_from_the_first_that_is_seen(monitor, client) -> None:
    auto_heartbeat.begin()()
    assert monitor.word(layout.STEPS_BESIDE) == 2.0
    assert auto_heartbeat.StepClient not in map(type, client_module.initialised_clients())
    reader, writer = os.pipe()
    if os.fork() == 0:
        client_module.count_step()  # of a child that trains something else
        os.write(writer, b"done")
        os._exit(0)
    os.wait()
    assert os.read(reader, 4) == b"done"
    for end in (reader, writer):
        os.close(end)
    assert monitor.word(layout.STEPS_BESIDE) == 2.0


def test_an_unknown_section_is_ignored_with_one_warning(monitor, client, caplog) -> None:
    """It names the section, the configured ones and the flag."""
    for _ in range(3):
        client.start_section("stp")
        client.end_section("stp")
    assert len(caplog.records) == 1
    assert "section 'stp' is not configured" in caplog.text
    assert "configured are ['save', 'setup', 'step']" in caplog.text
    assert monitor.word(layout.OUTSIDE_SINCE) > 0.0


def test_one_rank_of_a_node_warns_of_a_section_and_the_others_log_it_for_debugging(
    monitor, client, caplog, tmp_path, monkeypatch
) -> None:
    """Whichever uses it first: it may be the only one. Each cycle has a folder of its own."""
    caplog.set_level("DEBUG", client.logger.name)
    monkeypatch.setenv("NVRX_CYCLE", "0")
    levels = []
    for folder in ("attempt_0/3", "attempt_0/1", "attempt_1/0", "missing/0"):
        if folder != "missing/0":
            (tmp_path / folder).mkdir(parents=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / folder / "error.json"))
        client._warned.clear()  # another rank's client
        client.start_section("a/\u00e4")
        levels.append(caplog.records[-1].levelname)
    assert levels == ["WARNING", "DEBUG", "WARNING", "WARNING"]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_1/2/error.json"))
    keys = "\udcff" * 200, "\udcff" * 200, "\udcff" * 201
    assert [is_first_on_node(key) for key in keys] == [True, False, True]
    monkeypatch.delenv("NVRX_CYCLE")
    client._warned.clear()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0/3/error.json"))
    client.start_section("a/\u00e4")  # under torchrun
    assert caplog.records[-1].levelname == "WARNING"
    assert not (tmp_path / "missing").exists()


def test_names_with_the_number_of_a_step_do_not_fill_the_log(monitor, client, caplog) -> None:
    """Nor the memory: a job has millions of them."""
    for step in range(100):
        client.start_section(f"step {step}")
        client.end_section(f"step {step}")
    assert len(caplog.records) == len(client._warned) == 16


def test_a_section_as_context_manager_can_be_used_again_and_within_itself(monitor, client) -> None:
    """Timed from the outermost entry of the thread."""
    step = client.section("step")
    assert client.section("step") is step
    for _ in range(2):
        with step:
            opened_at = monitor.slot("step")[0]
            assert opened_at > 0.0
            with client.section("step"):
                assert monitor.slot("step")[0] == opened_at
            assert monitor.slot("step")[0] == opened_at
        assert monitor.slot("step")[0] == 0.0


def test_a_context_manager_closes_its_section_on_the_way_out_of_an_exception(
    monitor, client
) -> None:
    """Which passes through unchanged."""
    with pytest.raises(ZeroDivisionError), client.section("step"):
        1 / 0  # noqa: B018
    assert monitor.slot("step")[0] == 0.0


def test_another_thread_cannot_enter_an_open_section(client) -> None:
    """Nor does its attempt disturb the one who is inside."""
    step = client.section("step")
    caught = []

    def intrude() -> None:
        try:
            with step:
                pass
        except RankMonitorClientError as error:
            caught.append(error)

    with step:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join(BOUND_S)
        assert len(caught) == 1
    with step:
        pass


@pytest.mark.parametrize("how", ["end_all_sections", "shutdown_workload_monitoring"])
def test_leaving_a_section_that_was_closed_meanwhile_is_fine(client, how) -> None:
    """Clean-up within the section must not turn into an error at its end."""
    step = client.section("step")
    with step:
        getattr(client, how)()
    if client.is_initialized:
        with step:
            pass


def test_threads_leave_a_consistent_page(make_monitor) -> None:
    """Many threads, many sections: at the end nothing is open, and the time outside runs."""
    names = [f"s{i}" for i in range(8)]
    monitor = make_monitor(rank_section_timeouts=dict.fromkeys(names, 60.0))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    failures = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def hammer(name: str) -> None:
        try:
            for _ in range(500):
                client.send_heartbeat()
                with client.section(name):
                    client.send_heartbeat()
                    assert client._words[layout.OUTSIDE_SINCE] == 0.0
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(name,)) for name in names]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert [monitor.slot(name)[0] for name in names] == [0.0] * len(names)
    assert monitor.word(layout.OUTSIDE_SINCE) > 0.0
    client.shutdown_workload_monitoring()


def test_interruptions_leave_lock_and_page_in_order(client) -> None:
    """Wherever a signal handler raises: page and client agree, and no lock stays taken."""

    class Tick(Exception):  # noqa: N818
        pass

    has_ticked = threading.Event()

    def tick(*_) -> None:
        has_ticked.set()
        raise Tick

    clock, words = client._clocks["step"], client._words
    caught = 0
    before = signal.signal(signal.SIGALRM, tick)
    gc.disable()  # Python drops what is raised in a callback of the collector (Hypothesis has one)
    try:
        while caught < 300:
            try:
                has_ticked.clear()
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-7 * caught)
                while not has_ticked.is_set():  # dropped elsewhere, too: where an object ends
                    client.start_section("step")
                    client.end_section("step")
            except Tick:
                caught += 1
            assert words[clock.slot] == clock.opened_at
            assert words[layout.OUTSIDE_SINCE] == (
                0.0 if clock.opened_at else client._outside_since
            )
            client.end_all_sections()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()

    thread = threading.Thread(target=client.start_section, args=("step",))
    thread.start()
    thread.join(BOUND_S)
    assert client._is_open("step")


# ---------------------------------------------------------------------- forked children


def in_child(action) -> int:
    """Exit code of a forked child that did ``action``; 0: it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException as error:  # noqa: BLE001
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_never_speaks_for_the_rank(monitor, client) -> None:
    """Whatever it calls, the page stays as it is, nothing is raised, and nobody is told."""
    client.send_heartbeat()
    client.start_section("step")
    before = monitor.page()
    seen = bytes(before.words)

    def misbehave() -> None:
        assert client.is_initialized
        client.send_heartbeat()
        client.start_section("step")
        client.start_section("setup")
        client.end_section("save")
        with client.section("step"):
            pass
        client.end_all_sections()
        assert client.calculate_and_set_hb_timeouts() is False
        assert client.calculate_and_set_section_timeouts() is False
        client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": 1.0}}})
        client.state_dict()
        client.init_workload_monitoring()
        client.shutdown_workload_monitoring()
        client.send_heartbeat()
        client.init_workload_monitoring()

    assert in_child(misbehave) == 0
    assert bytes(before.words) == seen
    before.close()
    assert monitor.operations() == ["hello", "armed"]

    client.end_section("step")
    client.send_heartbeat()
    assert monitor.word(layout.OUTSIDE_SINCE) > 0.0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_lock_held_by_another_thread_at_the_fork_does_not_stop_the_child(client) -> None:
    """The thread that would release it does not exist there."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with client._lock, client._control_lock:
            held.set()
            release.wait(BOUND_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(BOUND_S)

    def use() -> None:
        signal.alarm(BOUND_S)
        client.start_section("step")
        client.shutdown_workload_monitoring()

    code = in_child(use)
    release.set()
    thread.join(BOUND_S)
    assert code == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_does_not_keep_the_connection_of_a_rank_that_died(monitor) -> None:
    """The monitor sees the end of the rank although a data loader of it lives on."""
    script = f"""
import os, sys
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
forked, tell_forked = os.pipe()
if os.fork() == 0:
    os.write(tell_forked, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(forked, 1)
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=rank_environment(monitor),
        stdin=subprocess.PIPE,
    ) as rank:
        rank.wait(BOUND_S)
        assert monitor.left.wait(BOUND_S)
        rank.stdin.close()


# ---------------------------------------------------------------------- evidence


def run_rank(monitor: FakeMonitor, script: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=rank_environment(monitor, **environment),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def test_the_stacks_of_a_rank_can_be_dumped_from_outside(monitor, tmp_path) -> None:
    """By the signal that the page names; nothing else happens to the rank."""
    monitor.dump = str(tmp_path / "stacks.txt")
    done = run_rank(
        monitor,
        """
import os, signal
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.page.pure import page
client = RankMonitorClient()
client.init_workload_monitoring()
number = int(client._words[page.DUMP_SIGNAL])
def deep_in_the_loop():
    os.kill(os.getpid(), number)
deep_in_the_loop()
client.shutdown_workload_monitoring()
client.init_workload_monitoring()
assert int(client._words[page.DUMP_SIGNAL]) == number
print(number - signal.SIGRTMIN)
""",
    )
    assert done.stdout == "7\n"
    assert "WARNING" not in done.stderr
    assert "deep_in_the_loop" in (tmp_path / "stacks.txt").read_text()


def test_a_signal_that_the_program_uses_is_left_to_it(monitor, tmp_path) -> None:
    """The next one is taken, whoever installed the handler."""
    monitor.dump = str(tmp_path / "stacks.txt")
    done = run_rank(
        monitor,
        """
import faulthandler, signal, sys
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.page.pure import page
signal.signal(signal.SIGRTMIN + 7, lambda *_: None)
faulthandler.register(signal.SIGRTMIN + 8, file=sys.stderr)
signal.signal(signal.SIGRTMIN + 9, signal.SIG_IGN)
client = RankMonitorClient()
client.init_workload_monitoring()
print(int(client._words[page.DUMP_SIGNAL]) - signal.SIGRTMIN)
""",
    )
    assert done.stdout == "10\n"
    assert "WARNING" not in done.stderr


def test_a_dump_file_that_cannot_be_opened_is_a_warning(monitor, tmp_path, caplog) -> None:
    """The rank is monitored all the same, and no signal is announced."""
    monitor.dump = str(tmp_path / "no" / "stacks.txt")
    before = caught_signals()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert monitor.word(layout.DUMP_SIGNAL) == 0.0
    assert "stacks of this rank will be missing" in caplog.text
    client.shutdown_workload_monitoring()
    assert caught_signals() == before


def caught_signals() -> set[int]:
    state = process_state(os.getpid())
    return {number for number in signal.valid_signals() if state.catches(number)}


# ---------------------------------------------------------------------- learned limits


def test_heartbeat_limits_follow_from_the_intervals(make_monitor, one_rank) -> None:
    """Page, monitor and fields agree; a second calculation is averaged with the first."""
    monitor = make_monitor(safety_factor=2.0, learned_timeout_floor=0.0)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.send_heartbeat()
    initial, gap = monitor.word(layout.LONGEST_INITIAL), monitor.word(layout.LONGEST_GAP)

    assert client.calculate_and_set_hb_timeouts() is True
    assert client.hb_timeouts.initial == 2.0 * initial
    assert client.hb_timeouts.subsequent == 2.0 * gap
    assert client.hb_timeouts.were_calculated
    assert monitor.word(layout.LIMIT_HEARTBEAT) == 2.0 * gap
    assert monitor.word(layout.LEARNED_HEARTBEAT) == 1.0
    assert monitor.word(layout.LIMITS_VERSION) % 2 == 0
    assert monitor.heard[-1] == {
        "op": "timeouts",
        "initial": 2.0 * initial,
        "subsequent": 2.0 * gap,
        "out_of_section": client.section_timeouts.out_of_section,
        "sections": client.section_timeouts.section,
        "learned": {"heartbeat": True, "out_of_section": False, "sections": []},
        "section_ends_initial": False,
        "exit": None,
        "steps": None,
    }

    client._longest_gap = 3.0 * gap
    client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts.subsequent == pytest.approx(4.0 * gap)
    client.shutdown_workload_monitoring()


def test_no_limit_is_calculated_below_the_floor(monitor, client, one_rank) -> None:
    """A run of milliseconds must not leave limits of milliseconds behind."""
    client.send_heartbeat()
    client.send_heartbeat()
    client.calculate_and_set_hb_timeouts()
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (30.0, 30.0)


def test_calculating_too_early_is_refused_or_skipped(client, one_rank) -> None:
    """The message names what has not been seen."""
    client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True) is False
    with pytest.raises(RankMonitorClientError, match="has measured: second heartbeat"):
        client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts(skip_if_not_ready=True) is False
    with pytest.raises(RankMonitorClientError, match="section 'setup', section 'step'"):
        client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.section == SECTIONS


def test_selected_sections_are_calculated_and_others_kept(monitor, client, one_rank) -> None:
    """Flags are united over calls; the open stretch outside counts as time outside."""
    client.start_section("step")
    client.end_section("step")
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert client.section_timeouts.section == {**SECTIONS, "step": 30.0}
    assert client.section_timeouts.out_of_section is None
    assert client.section_timeouts.calculated_sections == {"step"}
    assert monitor.slot("step")[2:] == [30.0, 1.0]
    assert monitor.slot("setup")[2:] == [600.0, 0.0]

    client.start_section("setup")
    client.end_section("setup")
    assert client.calculate_and_set_section_timeouts(("setup",))
    assert client.section_timeouts.out_of_section == 30.0
    assert client.section_timeouts.calculated_sections == {"setup", "step"}
    assert monitor.word(layout.LIMIT_OUTSIDE) == 30.0
    assert not client.section_timeouts.were_calculated

    with client.section("save"):
        pass
    assert client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.were_calculated


def test_no_selected_section_asks_for_all_data_and_changes_nothing(client, one_rank) -> None:
    """An empty selection is not the same as everything."""
    assert not client.calculate_and_set_section_timeouts([], skip_if_not_ready=True)
    for name in SECTIONS:
        client.start_section(name)
        client.end_section(name)
    assert client.calculate_and_set_section_timeouts([], calc_out_of_section=False)
    assert client.section_timeouts.section == SECTIONS


def test_an_unknown_name_is_found_before_other_ranks_wait(client, monkeypatch) -> None:
    """The collective is not entered."""
    monkeypatch.setattr(calc_module, "max_over_ranks", lambda _: pytest.fail("entered"))
    with pytest.raises(KeyError, match="stp"):
        client.calculate_and_set_section_timeouts(["stp"])


def test_without_a_process_group_nothing_can_be_calculated(client) -> None:
    """One rank's intervals are not those of the job."""
    with pytest.raises(calc_module.TimeoutsCalcError, match="init_process_group"):
        client.calculate_and_set_hb_timeouts()


def test_limits_that_the_monitor_raises_are_taken_over(monitor, client, one_rank) -> None:
    """They tripped before, and must not do it twice."""
    client.send_heartbeat()
    client.send_heartbeat()
    monitor.reply["timeouts"] = {
        "op": "ok",
        "raised": {"initial": 30.0, "subsequent": 60.0, "sections": SECTIONS},
    }
    client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts.subsequent == 60.0
    assert monitor.word(layout.LIMIT_HEARTBEAT) == 60.0

    client.start_section("step")
    client.end_section("step")
    monitor.reply["timeouts"] = {
        "op": "ok",
        "raised": {
            "initial": 30.0,
            "subsequent": 60.0,
            "sections": {**SECTIONS, "step": 61.0},
            "out_of_section": 62.0,
        },
    }
    client.calculate_and_set_section_timeouts(["step"])
    assert client.section_timeouts.section["step"] == 61.0
    assert client.section_timeouts.out_of_section == 62.0
    assert monitor.slot("step")[2] == 61.0
    assert monitor.word(layout.LIMIT_OUTSIDE) == 62.0


def test_limits_that_the_monitor_refuses_are_not_in_force(monitor, client, one_rank) -> None:
    """All or nothing: page and fields are as before."""
    client.send_heartbeat()
    client.send_heartbeat()
    monitor.reply["timeouts"] = {"op": "error", "text": "no"}
    with pytest.raises(RankMonitorClientError, match="answered 'no'"):
        client.calculate_and_set_hb_timeouts()
    assert monitor.word(layout.LIMIT_HEARTBEAT) == 2700.0
    assert monitor.word(layout.LEARNED_HEARTBEAT) == 0.0
    assert monitor.word(layout.LIMITS_VERSION) % 2 == 0
    assert client.hb_timeouts.subsequent == 2700.0


@pytest.fixture
def known_place(monkeypatch):
    """Of a job of four ranks, with a script."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)


def measured_steps(client) -> None:
    """Both clocks have something to say."""
    client.send_heartbeat()
    client.send_heartbeat()
    for name in SECTIONS:
        client.start_section(name)
        client.end_section(name)


@pytest.mark.parametrize("begins", ["in a later cycle", "after a restart in place", "by torchrun"])
def test_a_restart_lowers_no_timeout(make_monitor, one_rank, monkeypatch, begins) -> None:
    """Files are cached and kernels compiled: the next first start takes longer."""
    monitor = make_monitor(rank_out_of_section_timeout=700.0)
    if begins == "in a later cycle":
        monitor.cycle = 2
    elif begins == "by torchrun":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    else:
        before = RankMonitorClient()
        before.init_workload_monitoring()
        before.shutdown_workload_monitoring()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    measured_steps(client)
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts()
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (3600.0, 2700.0)
    assert client.section_timeouts.section == SECTIONS
    assert client.section_timeouts.out_of_section == 700.0
    assert client.state_dict()["current_timeouts"] == {}, "nothing was learned"

    client._clocks["step"].longest_s = 50.0
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert client.section_timeouts.section["step"] == 250.0, "raised it may be"
    assert client.section_timeouts.calculated_sections == {"step"}
    client.shutdown_workload_monitoring()


def test_a_restart_on_one_rank_is_a_restart_for_all(client, monkeypatch) -> None:
    """All ranks come to the same limits, whichever of them were started again."""

    def other_rank_was_restarted(values):
        restarted = [-1.0] * 3 + values[3:5] + [1.0, -1.0, -1.0]
        return [max(pair) for pair in zip(values, restarted, strict=True)]

    monkeypatch.setattr(
        calc_module, "max_over_ranks", lambda v: [*other_rank_was_restarted(v[:8]), *v[8:]]
    )
    measured_steps(client)
    client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.section == SECTIONS


@pytest.mark.usefixtures("known_place")
@pytest.mark.parametrize(
    ("keeps", "configured", "is_kept"),
    [
        (False, None, False),  # as programs for nvidia-resiliency-ext expect
        (True, None, True),
        (True, True, False),  # asked for
        (False, False, True),
    ],
)
def test_given_timeouts_are_kept_where_that_is_not_switched_off(
    make_monitor, one_rank, keeps, configured, is_kept
) -> None:
    """Calculated and loaded ones alike; defaults are nobody's choice."""
    monitor = make_monitor(
        learned_timeouts_below_given=configured,
        initial_rank_heartbeat_timeout=900.0,
        rank_out_of_section_timeout=700.0,
    )
    client = RankMonitorClient()
    client.keeps_given_timeouts = keeps
    client.init_workload_monitoring()
    measured_steps(client)
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    learned = dict.fromkeys(SECTIONS, 30.0)
    expected = {name: s or 30.0 for name, s in SECTIONS.items()} if is_kept else learned
    assert client.section_timeouts.section == expected
    assert client.section_timeouts.out_of_section == (700.0 if is_kept else 30.0)
    assert client.hb_timeouts.initial == (900.0 if is_kept else 30.0)
    assert client.hb_timeouts.subsequent == 30.0
    assert monitor.slot("setup")[2] == expected["setup"]
    state = client.state_dict()
    client.shutdown_workload_monitoring()

    shorter = json.loads(json.dumps(state).replace("600.0", "31.0").replace("900.0", "31.0"))
    again = RankMonitorClient()
    again.keeps_given_timeouts = keeps
    again.load_state_dict(shorter)
    again.init_workload_monitoring()
    assert again.section_timeouts.section == expected
    assert again.hb_timeouts.initial == (900.0 if is_kept else 30.0)
    again.shutdown_workload_monitoring()


def test_given_timeouts_are_kept_after_a_restart_that_brings_learned_ones(
    make_monitor, one_rank
) -> None:
    """The configuration that a restarted rank receives has the timeouts in force."""
    monitor = make_monitor()
    monitor.cfg["rank_section_timeouts"] = {**SECTIONS, "setup": 40.0}  # learned by a program
    client = RankMonitorClient()
    client.keeps_given_timeouts = True
    client.init_workload_monitoring()
    assert client.section_timeouts.section["setup"] == 40.0
    measured_steps(client)
    client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.section["setup"] == 600.0
    client.shutdown_workload_monitoring()


# ---------------------------------------------------------------------- persisted state

STATE = {
    "current_timeouts": {
        "heartbeat": {"initial": 100.0, "subsequent": 40.0, "were_calculated": True},
        "section": {
            "section": {"setup": 700.0, "step": 45.0, "save": None},
            "out_of_section": 50.0,
            "calculated_sections": ["setup", "step"],
            "is_out_of_section_calculated": True,
        },
    }
}


@pytest.mark.parametrize("when", ["before init", "after init"])
def test_state_goes_through_json_and_back(monitor, when) -> None:
    """Loaded before init it is applied at init, afterwards at once."""
    client = RankMonitorClient()
    if when == "after init":
        client.init_workload_monitoring()
        assert client.state_dict() == {"current_timeouts": {}}
    client.load_state_dict(json.loads(json.dumps(STATE)))
    if when == "before init":
        client.init_workload_monitoring()
    assert client.state_dict() == STATE
    assert client.hb_timeouts.were_calculated
    assert monitor.operations() == ["hello", "armed", "timeouts"]
    assert monitor.heard[-1]["learned"]["sections"] == ["setup", "step"]
    assert monitor.heard[-1]["learned"]["heartbeat"] is True
    assert monitor.word(layout.LIMIT_HEARTBEAT) == 40.0
    assert monitor.slot("save")[2:] == [math.inf, 0.0]
    client.shutdown_workload_monitoring()


def test_calculated_limits_below_the_floor_are_raised_when_loaded(monitor) -> None:
    """A state that was poisoned by a fast run does no harm; configured values are respected."""
    client = RankMonitorClient()
    client.load_state_dict(
        {
            "current_timeouts": {
                "heartbeat": {"initial": 2.0, "subsequent": 40.0, "were_calculated": True},
                "section": {
                    "section": {"setup": 2.25, "step": 5.0},
                    "out_of_section": 1.0,
                    "calculated_sections": ["setup"],
                    "is_out_of_section_calculated": True,
                },
            }
        }
    )
    client.init_workload_monitoring()
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (30.0, 40.0)
    assert client.section_timeouts.section == {"setup": 30.0, "step": 5.0, "save": None}
    assert client.section_timeouts.out_of_section == 30.0
    client.shutdown_workload_monitoring()


@pytest.mark.usefixtures("known_place")
@pytest.mark.parametrize("changed", [None, "script", "world_size", "machine", "unknown", "odd"])
def test_what_was_learned_elsewhere_starts_at_the_default_floor(
    make_monitor, one_rank, changed
) -> None:
    """Another script, world size or machine, or a state that does not say."""
    make_monitor(learned_timeout_floor=1.0)
    first = RankMonitorClient()
    first.init_workload_monitoring()
    measured_steps(first)
    first.calculate_and_set_hb_timeouts()
    state = json.loads(json.dumps(first.state_dict()))
    assert state["current_timeouts"]["heartbeat"]["subsequent"] == 1.0
    first.shutdown_workload_monitoring()

    if changed == "unknown":
        del state["learned_where"]
    elif changed == "odd":
        state["learned_where"] = [1]
    elif changed is not None:
        state["learned_where"][changed] += 1
    again = RankMonitorClient()
    again.load_state_dict(state)
    again.init_workload_monitoring()
    assert again.hb_timeouts.subsequent == (1.0 if changed is None else 30.0)
    if changed is None:
        assert again.state_dict() == state, "loading is not learning"
    again.shutdown_workload_monitoring()


@pytest.mark.parametrize(("rank", "level"), [(0, logging.INFO), (3, logging.DEBUG)])
def test_new_timeouts_are_one_line_for_the_job(monitor, client, caplog, rank, level) -> None:
    """In words, by rank 0: all ranks have the same."""
    caplog.set_level(logging.DEBUG, logger=client.logger.name)
    client.rank_info = RankInfo(rank, 0)
    client.load_state_dict(STATE)
    [line] = [each for each in caplog.records if "timeouts are now" in each.getMessage()]
    assert line.levelno == level
    assert "section 'step' " in line.getMessage()


def test_timeouts_that_are_learned_at_each_save_are_one_short_line_once(
    monitor, client, caplog
) -> None:
    """Then they are at the level debug, in full."""
    caplog.set_level(logging.DEBUG, logger=client.logger.name)
    client.rank_info = RankInfo(0, 0)
    for _ in range(3):
        client.load_state_dict(STATE)
    lines = [each for each in caplog.records if "timeouts are now" in each.getMessage()]
    assert [each.levelno for each in lines] == [logging.INFO, logging.DEBUG, logging.DEBUG]
    assert len(lines[0].getMessage()) < 150
    assert lines[0].getMessage().endswith(", ...")
    assert "between heartbeats 40 s" in lines[1].getMessage()


def test_a_loaded_state_fits_itself_to_the_configured_sections(monitor, client, caplog) -> None:
    """Strangers are left out with a warning; sections it does not know keep their limits."""
    client.load_state_dict(
        {
            "current_timeouts": {
                "section": {
                    "section": {"step": 90.0, "renamed": 1.0},
                    "calculated_sections": ["step", "renamed"],
                }
            }
        }
    )
    assert client.section_timeouts.section == {**SECTIONS, "step": 90.0}
    assert client.section_timeouts.calculated_sections == {"step"}
    assert client.hb_timeouts.subsequent == 2700.0
    assert "loaded timeouts of sections ['renamed'] are left out" in caplog.text


@pytest.mark.parametrize("state", [{}, {"current_timeouts": {}}, {"current_timeouts": None}])
def test_an_empty_state_changes_nothing(monitor, client, state) -> None:
    """The first run has none."""
    client.load_state_dict(state)
    assert client.hb_timeouts.initial == 3600.0
    assert monitor.operations() == ["hello", "armed"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"heartbeat": {"initial": -1.0}}, "heartbeat/initial is -1.0"),
        ({"heartbeat": {"initial": float("nan")}}, "heartbeat/initial is nan"),
        ({"heartbeat": [1.0]}, r"heartbeat is \[1.0\], expected a mapping"),
        ({"section": {"section": {"step": "9"}}}, "section/step is '9', expected seconds"),
        ({"section": {"calculated_sections": 3}}, "calculated_sections is 3"),
        ([1.0], "cannot load timeouts"),
    ],
)
def test_a_damaged_state_is_refused_as_a_whole(client, limits, text) -> None:
    """Naming the part that makes no sense."""
    with pytest.raises(RankMonitorClientError, match=text):
        client.load_state_dict({"current_timeouts": limits})
    assert client.hb_timeouts.initial == 3600.0


# ---------------------------------------------------------------------- a replaced monitor


def test_a_replaced_monitor_is_found_by_the_next_request(monitor, client, one_rank) -> None:
    """The client connects again, says that it goes on, and repeats what it asked."""
    client.send_heartbeat()
    client.send_heartbeat()
    monitor.reply["timeouts"] = "hang up"
    assert client.calculate_and_set_hb_timeouts()
    assert monitor.operations() == ["hello", "armed", "timeouts", "hello", "timeouts"]
    assert monitor.heard[3]["resume"] is True
    client.shutdown_workload_monitoring()
    assert monitor.operations()[-1] == "leavemonitor"


def test_only_one_new_connection_is_tried(monitor, client, caplog) -> None:
    """Then the page is enough: whoever watches this rank next reads it there."""
    monitor.reply["timeouts"] = "hang up"
    monitor.reply["hello"] = "hang up"
    client.load_state_dict(STATE)
    assert "rank 3: its monitor does not answer" in caplog.text
    assert "its monitor cannot be reached" in caplog.text
    assert client.hb_timeouts.subsequent == 40.0
    assert monitor.word(layout.LIMIT_HEARTBEAT) == 40.0

    client.load_state_dict(STATE)  # the next call tries again
    assert monitor.operations()[2:] == ["timeouts", "hello", "hello", "timeouts"]


def test_a_monitor_that_is_silent_holds_nobody_up(
    monitor, client, one_rank, monkeypatch, caplog
) -> None:
    """P-1: limits are in the page, and in force there; one warning. It is not waited for again."""
    waits = []
    monkeypatch.setattr(link_module, "_ANSWER_S", 0.1)
    monkeypatch.setattr(link_module, "monotonic", lambda: 100.0)
    request = link_module.Connection.request

    def note(connection, message, timeout_s):
        waits.append(timeout_s)
        return request(connection, message, timeout_s)

    monkeypatch.setattr(link_module.Connection, "request", note)
    client.send_heartbeat()
    client.send_heartbeat()
    monitor.reply["timeouts"] = "silence"
    assert client.calculate_and_set_hb_timeouts() is True
    assert client.hb_timeouts.subsequent == 30.0
    assert (monitor.word(layout.LIMIT_HEARTBEAT), monitor.word(layout.LEARNED_HEARTBEAT)) == (30, 1)
    assert monitor.word(layout.LIMITS_VERSION) % 2 == 0

    for _ in range(40):
        client.load_state_dict(STATE)
    assert waits[0] > 0.05
    assert max(waits[1:]) < 0.01
    assert client.hb_timeouts.subsequent == 40.0
    assert caplog.text.count("does not answer") == 1
    client.shutdown_workload_monitoring()
    assert max(waits[1:]) < 0.01


def test_a_monitor_that_goes_on_is_heard_again(monitor, client, monkeypatch) -> None:
    """Its late answers are not taken for those to later questions."""
    monitor.reply["timeouts"] = "late"
    monkeypatch.setattr(link_module, "_ANSWER_S", 0.05)
    client.load_state_dict(STATE)
    monkeypatch.setattr(link_module, "_ANSWER_S", BOUND_S)
    assert client._link._connection.owes_answers()
    client.load_state_dict(STATE)
    until(lambda: not client._link._connection.owes_answers())

    monitor.reply["timeouts"] = {
        "op": "ok",
        "raised": {"initial": 100.0, "subsequent": 80.0, "sections": SECTIONS},
    }
    client.load_state_dict(STATE)

    assert client.hb_timeouts.subsequent == 80.0


def test_a_monitor_of_another_cycle_is_refused(monitor, client) -> None:
    """A straggler of the last cycle must not be taken for a rank of this one."""
    monitor.reply["timeouts"] = "hang up"
    monitor.page_path = "/elsewhere"
    with pytest.raises(RankMonitorClientError, match="belongs to another cycle"):
        client.load_state_dict(STATE)


def test_heartbeats_and_sections_need_no_monitor(monitor, client) -> None:
    """Whatever state it is in (P-1)."""
    monitor.reply["timeouts"] = "hang up"
    monitor.reply["hello"] = "hang up"
    with contextlib.suppress(RankMonitorClientError):
        client.load_state_dict(STATE)
    client.send_heartbeat()
    with client.section("step"):
        pass
    assert monitor.slot("step")[1] > 0.0


# ---------------------------------------------------------------------- iterations


@pytest.fixture
def megatron(monkeypatch):
    """A loaded Megatron-LM, as far as anybody can see."""
    args = types.SimpleNamespace(iteration=0)
    module = types.ModuleType("megatron.training.global_vars")
    module.get_args = lambda: args
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return args


def test_iterations_of_megatron_are_noted_and_warm_up_counts_from_the_first(
    monitor, megatron
) -> None:
    """From the loop's own count, which begins where the checkpoint ended."""
    client = RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=3)
    with client.section("setup"):
        assert (monitor.word(layout.ITERATION), monitor.word(layout.WARM_UNTIL)) == (0.0, 3.0)
        megatron.iteration = 1000
    megatron.curr_iteration = 1000
    with client.section("step"):
        assert (monitor.word(layout.ITERATION), monitor.word(layout.WARM_UNTIL)) == (1000.0, 1003.0)
    megatron.curr_iteration = 1003
    with client.section("step"):
        assert (monitor.word(layout.ITERATION), monitor.word(layout.WARM_UNTIL)) == (1003.0, 1003.0)
    client.shutdown_workload_monitoring()


def test_megatron_that_has_no_arguments_yet_is_left_alone(monitor, monkeypatch) -> None:
    """It asserts; a section must not fail for that."""

    def get_args() -> None:
        raise AssertionError("args is not initialized.")

    module = types.SimpleNamespace(get_args=get_args)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", module)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with client.section("step"):
        pass
    assert monitor.word(layout.ITERATION) == -1.0
    client.shutdown_workload_monitoring()


# ---------------------------------------------------------------------- workload control


def test_a_control_request_waits_for_the_launchers_ok(monitor, tmp_path, monkeypatch) -> None:
    """One connection per request; what the launcher refuses is raised."""
    (tmp_path / "l").mkdir()
    launcher = FakeMonitor(tmp_path / "l")
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", launcher.path)
    client = RankMonitorClient()
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "ECC errors")
    with pytest.raises(RankMonitorClientError, match="call init_workload_monitoring"):
        client.send_workload_control_request(request)

    client.init_workload_monitoring()
    client.send_workload_control_request(request)
    assert launcher.heard == [
        {"op": "control", "rank": 3, "action": "ExcludeThisNode", "description": "ECC errors"}
    ]
    assert launcher.left.wait(BOUND_S)

    launcher.reply["control"] = {"op": "error", "text": "not now"}
    with pytest.raises(RankMonitorClientError, match=r"the launcher refused .*ECC.*: not now"):
        client.send_workload_control_request(request)
    launcher.close()
    with pytest.raises(OSError, match="rank 3: its launcher cannot be reached"):
        client.send_workload_control_request(request)
    client.shutdown_workload_monitoring()


def test_without_a_launcher_requests_are_refused(monkeypatch, caplog) -> None:
    """Said once at construction, and again when it matters."""
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    with caplog.at_level(logging.INFO):
        client = RankMonitorClient()
    assert "workload control requests are not available" in caplog.text
    with pytest.raises(RuntimeError, match="FT_LAUNCHER_IPC_SOCKET is not set"):
        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.Continue))


# ---------------------------------------------------------------------- a rank's own process


def test_the_exception_hook_ends_the_process_without_its_teardown(make_monitor) -> None:
    """The trace is shown as ever, files are flushed, atexit functions do not run, exit code 1."""
    monitor = make_monitor(install_exception_hook=True)
    done = run_rank(
        monitor,
        """
import atexit
from holdfast.fault_tolerance import RankMonitorClient
atexit.register(print, "teardown")
client = RankMonitorClient()
client.init_workload_monitoring()
client.shutdown_workload_monitoring()
client.init_workload_monitoring()
print("before")
raise ValueError("loss is nan")
""",
    )
    assert done.returncode == 1
    assert done.stdout == "before\n"
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ValueError: loss is nan\n")


def test_importing_the_client_is_light(tmp_path) -> None:
    """Nor is making one; what it may import at all, import-linter holds (pyproject.toml)."""
    script = """
import sys
import holdfast
assert "logging" not in sys.modules
from holdfast.fault_tolerance import RankMonitorClient
RankMonitorClient()
heavy = {"torch", "numpy", "asyncio", "yaml", "argparse", "multiprocessing", "subprocess"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout == "[]\n"
