"""Value types."""

import json

import pytest

from holdfast.fault_tolerance.data import (
    HeartbeatTimeouts,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
    timeouts_text,
)
from holdfast.page.pure.clocks import Timeouts
from nvidia_resiliency_ext.fault_tolerance import data
from nvidia_resiliency_ext.fault_tolerance.data import SectionAction


@pytest.mark.parametrize(
    ("timeouts", "text"),
    [
        (
            HeartbeatTimeouts(),
            "HeartbeatTimeouts(initial=None, subsequent=None, were_calculated=None)",
        ),
        (
            HeartbeatTimeouts(3.14159, 2, were_calculated=True),
            "HeartbeatTimeouts(initial=3.14, subsequent=2.00, were_calculated=True)",
        ),
        (
            SectionTimeouts({"step": 1.005, "save": None}, 7, {"step"}),
            (
                "SectionTimeouts(section={'step': 1.00, 'save': None}, out_of_section=7.00, "
                "calculated_sections=['step'], is_out_of_section_calculated=False)"
            ),
        ),
    ],
)
def test_limits_are_printed_with_two_decimals(timeouts, text) -> None:
    """People compare them by eye, in logs."""
    assert str(timeouts) == text


def test_heartbeat_limits_are_valid_when_both_are_set() -> None:
    """One of two is not enough."""
    assert HeartbeatTimeouts(1.0, 2.0).are_valid
    assert not HeartbeatTimeouts(1.0, None).are_valid
    assert not HeartbeatTimeouts(None, 2.0).are_valid


def test_section_limits_are_calculated_when_all_of_them_are() -> None:
    """Every section, and the time outside."""
    timeouts = SectionTimeouts({"a": 1.0, "b": 2.0}, 3.0, ["a"], is_out_of_section_calculated=True)
    assert timeouts.calculated_sections == {"a"}
    assert timeouts.are_valid
    assert not timeouts.were_calculated
    timeouts.calculated_sections.add("b")
    assert timeouts.were_calculated
    timeouts.is_out_of_section_calculated = False
    assert not timeouts.were_calculated


def test_section_limits_are_valid_when_none_is_missing() -> None:
    """An unlimited section, or unlimited time outside, is not valid."""
    assert not SectionTimeouts({"a": None}, 3.0).are_valid
    assert not SectionTimeouts({"a": 1.0}, None).are_valid


def test_a_request_reads_as_a_sentence() -> None:
    """Launchers log it."""
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode)
    assert request.description == "<not set>"
    assert str(request) == (
        "WorkloadControlRequest(action=ExcludeThisNode, description='<not set>')"
    )


def test_numbers_of_the_enumerations_are_fixed() -> None:
    """They are part of the interface."""
    assert [(each.name, each.value) for each in WorkloadAction] == [
        ("Continue", 0),
        ("ExcludeThisNode", 1),
        ("ShutdownWorkload", 2),
    ]
    assert [each.value for each in SectionAction] == [1, 2, 3]


def test_the_message_classes_can_be_made_with_what_callers_know() -> None:
    """Names and defaults that programs rely on."""
    info = data.RankInfo(global_rank=3, local_rank=1, host="n", pid=7)
    assert data.InitMsg(info).num_warmup_iters is None
    assert data.HeartbeatMsg(3).state == {}
    assert data.SectionMsg(3, "step", SectionAction.CLOSE).iteration is None
    assert data.UpdateConfigMsg(current_cycle=2).hb_timeouts is None
    assert data.OkMsg().cfg is None
    assert data.ErrorMsg("why").cause == "why"
    assert data.AuthkeyMsg("k").authkey == "k"
    assert json.dumps(data.FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR) == '"FT_RANK_MONITOR_IPC_SOCKET"'
    assert data.FT_LAUNCHER_IPC_SOCKET_ENV_VAR == "FT_LAUNCHER_IPC_SOCKET"


def test_timeouts_are_told_in_one_short_line() -> None:
    """Only those that are set."""
    limits = Timeouts(3600.0, None, sections={"a": 1.5, "b": None})
    assert timeouts_text(limits) == "section 'a' 1.5 s, first heartbeat 3600 s"
    text = timeouts_text(Timeouts(3600.0, section_ends_initial=True))
    assert text == "first heartbeat or section 3600 s"
    assert timeouts_text(Timeouts(out_of_section=30.0)) == "outside sections 30 s"
    assert timeouts_text(Timeouts()) == "none"
