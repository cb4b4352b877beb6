"""The arguments of torch's launcher API: taken as torch takes them, and put into the plan."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.launcher import api as torchs

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.launch_config import LaunchConfig, plan_of
from holdfast.fault_tolerance.launcher import __all__ as public_names
from holdfast.options.arguments import UsageError
from holdfast.options.plan import LaunchPlan

_DIFFERENT = {
    "rdzv_backend": "c10d",  # torch: etcd, which needs a server; specification 5.1
    "logs_specs": None,  # torch makes a folder; here it is None until the launcher makes one
    "shutdown_timeout": None,  # torch: its variable or 30; here the variable counts later
}


def plan(*args: Any, environ: dict[str, str] | None = None, **more: Any) -> LaunchPlan:
    words = ["--no-python", "true"]
    return plan_of(LaunchConfig(*(args or (1, 1, 2)), **more), words, environ or {}, name="work")


FIELDS_GREW = pytest.mark.skipif(
    not hasattr(torchs.LaunchConfig(1, 1, 1), "shutdown_timeout"),
    reason="torch's LaunchConfig has fewer fields here than in torch 2.13",
)


@FIELDS_GREW
def test_the_fields_are_torchs_in_torchs_order_with_ours_after_them() -> None:
    """A program that gives them by position works."""
    theirs = [each.name for each in dataclasses.fields(torchs.LaunchConfig)]
    ours = [each.name for each in dataclasses.fields(LaunchConfig)]

    assert ours[: len(theirs)] == theirs
    assert ours[len(theirs) :] == [
        "fault_tol_cfg",
        "term_timeout",
        "workers_stop_timeout",
        "restart_policy",
    ]


@FIELDS_GREW
def test_the_defaults_are_torchs_except_for_three() -> None:
    """And what torch puts into rdzv_configs is there."""
    theirs, ours = vars(torchs.LaunchConfig(1, 2, 3)), vars(LaunchConfig(1, 2, 3))
    assert {key: ours[key] for key in theirs} == {**theirs, **_DIFFERENT}
    assert LaunchConfig(1, 2, 3, rdzv_timeout=5).rdzv_configs == {"timeout": 5}
    assert LaunchConfig(1, 2, 3, rdzv_configs={"timeout": 7}).rdzv_configs == {"timeout": 7}


@FIELDS_GREW
def test_a_negative_shutdown_timeout_is_refused_as_by_torch() -> None:
    for kind in (torchs.LaunchConfig, LaunchConfig):
        with pytest.raises(ValueError, match="shutdown_timeout"):
            kind(1, 1, 1, shutdown_timeout=-1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"nproc_per_node": 2, "max_restarts": 3, "role": "default_role", "name": "work"}),
        ({}, {"term_timeout_s": 1800.0, "workers_stop_timeout_s": 15.0, "warnings": ()}),
        ({"run_id": "job7", "rdzv_endpoint": "h:1"}, {"run_id": "job7"}),
        ({"role": "trainer", "max_restarts": 0}, {"role": "trainer", "max_restarts": 0}),
        ({"log_line_prefix_template": "[${rank}]"}, {"log_line_prefix_template": "[${rank}]"}),
        ({"signals_to_handle": "SIGUSR1"}, {"signals_to_handle": (10,)}),
        (
            {"duplicate_stdout_filters": ["a,b", "c"], "duplicate_stderr_filters": ["d"]},
            {"duplicate_stdout_filters": ("a,b", "c"), "duplicate_stderr_filters": ("d",)},
        ),
        ({"virtual_local_rank": True}, {"virtual_local_rank": True}),
        ({"shutdown_timeout": 4}, {"term_timeout_s": 4.0}),
        ({"shutdown_timeout": 4, "term_timeout": 9}, {"term_timeout_s": 9.0}),
        ({"workers_stop_timeout": 2}, {"workers_stop_timeout_s": 2.0}),
        ({"restart_policy": "min-healthy"}, {"restart_policy": "min-healthy"}),
        (
            {"fault_tol_cfg": FaultToleranceConfig(rank_heartbeat_timeout=None)},
            {"ft": FaultToleranceConfig(rank_heartbeat_timeout=None)},
        ),
        (
            {
                "logs_specs": SimpleNamespace(
                    root_log_dir="/logs", _redirects={0: 3}, _tee=1, _local_ranks_filter={1}
                )
            },
            {
                "log_dir": "/logs",
                "redirects": {0: 3, 1: 0},
                "tee": {0: 1, 1: 1},
                "local_ranks_filter": frozenset({1}),
            },
        ),
    ],
    ids=",".join,
)
def test_each_argument_arrives_in_the_plan(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """By the way of the option of the same meaning."""
    result = plan(**given)
    assert {key: getattr(result, key) for key in expected if key != "warnings"} == {
        key: value for key, value in expected.items() if key != "warnings"
    }


def test_a_configuration_that_hardly_anybody_means_is_warned_of() -> None:
    """As on the command line."""
    result = plan(fault_tol_cfg=FaultToleranceConfig(safety_factor=0.5))
    assert [line for line in result.warnings if "safety_factor is 0.5" in line]


def test_several_nodes_meet_as_configured() -> None:
    """Endpoint, keys of the rendezvous, and the number of a static one."""
    result = plan(
        2,
        4,
        8,
        run_id="job7",
        rdzv_endpoint="n0:5000",
        rdzv_backend="static",
        rdzv_configs={"rank": 1, "timeout": 60, "is_host": 0},
        local_addr="10.0.0.2",
    )
    meeting = result.meeting
    assert meeting is not None
    assert (result.min_nodes, result.max_nodes, result.run_id) == (2, 4, "job7")
    assert (meeting.place.host, meeting.place.port, meeting.place.is_host) == (
        "n0",
        5000,
        False,
    )
    assert (meeting.infra_rank, meeting.place.local_addr) == (1, "10.0.0.2")
    assert plan().meeting is None


def test_a_command_lines_variables_are_not_a_programs() -> None:
    """PET_MAX_RESTARTS belongs to torchrun and ft_launcher; log variables belong to both."""
    environ = {"PET_MAX_RESTARTS": "9", "NVRX_LOG_DEBUG": "1", "NVRX_LOG_TO_STDOUT": "1"}
    result = plan(environ=environ)
    assert (result.max_restarts, result.log_to_stdout) == (3, True)


def test_arguments_without_effect_are_said_where_they_were_chosen() -> None:
    """Not their defaults."""
    assert plan().notes == ()
    [note] = plan(monitor_interval=5, start_method="fork").notes
    assert "--monitor-interval" in note
    assert "--start-method" in note
    [warning] = [w for w in plan(metrics_cfg={"p": "put"}).warnings if "metrics_cfg" in w]
    assert warning == "metrics_cfg: without effect: ['p']"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_restarts": -1}, "--max-restarts"),
        ({"start_method": "thread"}, "--start-method"),
        ({"restart_policy": "none"}, "--ft-restart-policy"),
        ({"rdzv_backend": "nobodys"}, "--rdzv-backend"),
        ({"rdzv_configs": {"a": "b,c"}}, "rdzv_configs: a='b,c'"),
        ({"logs_specs": object()}, "logs_specs: object"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(given: dict[str, Any], named: str) -> None:
    """By the option that takes it."""
    with pytest.raises(UsageError, match=named):
        plan(**given)


def test_every_public_name_of_the_launcher_module_can_be_imported() -> None:
    """Specification 1."""
    from holdfast.fault_tolerance import launcher

    assert {
        *("main", "get_args_parser", "parse_args", "LaunchConfig", "elastic_launch"),
        *("LocalElasticAgent", "UnhealthyNodeException"),
    } == set(public_names)
    assert all(getattr(launcher, name) for name in public_names)
