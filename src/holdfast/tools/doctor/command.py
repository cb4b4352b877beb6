"""``holdfast doctor [--json] [the words of an ft_launcher command line]``: starts no rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from holdfast.base import memory
from holdfast.base.pure.wording import count
from holdfast.errors import ConfigError
from holdfast.health.bounded import BoundedChecks
from holdfast.health.checks import Checks
from holdfast.health.pure.health import Finding, Fitness
from holdfast.options.arguments import UsageError, parse_args
from holdfast.options.cluster_env import read_cluster
from holdfast.options.plan import LaunchPlan, make_plan
from holdfast.tools.command_words import WRONG
from holdfast.tools.doctor import advice, earlier_run, host, limits, warm_standby
from holdfast.tools.doctor.faults import describe_restart, faults_of
from holdfast.tools.doctor.losses import about_memory, about_pages, losses_of
from holdfast.tools.doctor.page import as_json, as_text, is_ok

_USAGE = """\
usage: holdfast doctor [--json] [OPTIONS OF ft_launcher ... SCRIPT ...]

Checks this host, and the command line, configuration file and environment of a
job as ft_launcher would resolve them; says what will happen on each kind of
fault, who notices it, and after how long. Takes seconds. Does not run the
script, but imports its libraries in a process of their own: that tries warm
standby.

  holdfast doctor                                             this host alone
  holdfast doctor --nproc-per-node 8 --max-restarts 3 train.py

Exit code: 0, also with warnings; 1 with an error; 2 if the command line cannot
be used.
"""


def main(words: Sequence[str]) -> int:
    """The command; returns the exit code."""
    is_for_programs = words[:1] == ["--json"]
    command = list(words[1:] if is_for_programs else words)
    if command[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    try:
        plan = _plan(command, os.environ)
        last = earlier_run.find(plan) if command else None
        findings = examine(plan, os.environ, last, is_host_alone=not command)
    except UsageError as error:
        sys.stderr.write(f"holdfast doctor: error: {error}\n")
        return WRONG
    except ConfigError as error:
        sys.stderr.write(f"holdfast doctor: error: {error}\n")
        return 1
    faults = faults_of(plan) if command else []
    losses = losses_of(plan, last) if command else []
    if is_for_programs:
        page = json.dumps(as_json(findings, faults, losses), indent=2) + "\n"
    else:
        title = _title(plan, is_host_alone=not command)
        page = as_text(title, findings, faults, describe_restart(plan), losses)
    return 0 if _show(page) and is_ok(findings) else 1


def _show(page: str) -> bool:
    """Whether it could be written: a reader was there, and space."""
    try:
        sys.stdout.write(page)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - nor at the end
        sys.stderr.write(f"holdfast doctor: error: cannot write: {error.strerror}\n")
        return False
    return True


def examine(
    plan: LaunchPlan,
    environ: Mapping[str, str],
    last: earlier_run.EarlierRun | None = None,
    *,
    is_host_alone: bool,
) -> list[Finding]:
    """All there is to say about a plan and this host, by topic; ``last``: run of the script.

    Raises:
        ConfigError: The scheduler's environment contradicts itself.
    """
    findings = [] if is_host_alone else _job(plan, environ)
    findings += advice.about_scheduler(read_cluster(environ), plan.term_timeout_s)
    left_kib = None if is_host_alone else memory.available_kib()
    facts = host.facts(plan.nproc_per_node, environ)
    if not is_host_alone:
        findings += about_memory(plan, None if left_kib is None else left_kib << 10, last)
        has_files = facts.calls.get("memfd_create") != "absent"
        findings += about_pages(plan, facts.huge_pages, has_memory_files=has_files)
    findings += advice.about_host(facts)
    if plan.care is not None:
        seen: list[Finding] = []
        looks = [
            look for look in Checks(plan.care).before_join() if look.name != "host"
        ]  # host_facts say more
        BoundedChecks().run(looks, seen.append)
        findings += sorted(seen, key=lambda finding: finding.probe)
    if plan.meeting is not None and plan.meeting.place.other is None:
        findings += advice.about_network(host.network_facts(plan.meeting))
    return findings


def _job(plan: LaunchPlan, environ: Mapping[str, str]) -> list[Finding]:
    findings = [
        Finding("configuration", "command line", Fitness.SUSPECT, warning)
        for warning in plan.warnings
    ]
    if not plan.warnings:
        text = "everything in it is known and has an effect"
        findings.append(Finding("configuration", "command line", Fitness.HEALTHY, text))
    findings += warm_standby.findings(plan, environ)
    return findings + limits.judge(plan.ft, environ, monitored=plan.monitors_enabled)


def _plan(command: Sequence[str], environ: Mapping[str, str]) -> LaunchPlan:
    """Without a command line: a job of no script in particular, on this host alone."""
    words = command or ["--standalone", "--nproc-per-node=auto", os.devnull]
    return make_plan(parse_args(words, environ), environ)


def _title(plan: LaunchPlan, *, is_host_alone: bool) -> str:
    if is_host_alone:
        return "this host"
    nodes = str(plan.max_nodes)
    if plan.min_nodes != plan.max_nodes:
        nodes = f"{plan.min_nodes} to {plan.max_nodes}"
    return f"{plan.name}: {count(plan.nproc_per_node, 'rank')} on this node, of {nodes}"
