"""One job and the faults that are done to it, in a process of its own: hosts are named by pid."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.host_soak.faults import SLEEPS, Fault, begin
from tests.host_soak.hosts import HostJob, Layout
from tests.host_soak.lives import beside_s, broken_rules
from tests.real.harness import launcher
from tests.real.hosts import network

SETTLED_S = 200.0
"""A launcher without a majority waits for 130 s; a node that is awaited, 120 s."""
END_S = 60.0
HARMLESS_S = 3.0
"""What stands still for no longer costs no ranks; a lost packet may come again much later."""
AWAKE_BESIDE_S = 5.0
"""Ranks of a host that slept may run beside their successors for so long, if it has no leader."""


class Round(NamedTuple):
    """What is done; ``faults`` one after the other."""

    number: int
    layout: Layout
    faults: tuple[Fault, ...]
    silence_s: float
    training: str = ""
    """As in :mod:`.training`."""
    keep: str = ""
    """A folder for the files of rounds that fail."""


def run(what: Round) -> dict[str, Any]:
    """What came of it; ``error``: empty, or the first rule that was broken."""
    result: dict[str, Any] = {
        "round": what.number,
        "layout": what.layout.name,
        "silence_s": what.silence_s,
        "faults": [],
        "error": "",
    }
    folder = Path(tempfile.mkdtemp(prefix="holdfast_hosts_"))
    with ExitStack() as stack:
        hosts = stack.enter_context(network(folder))
        ft = stack.enter_context(launcher(folder))
        job = HostJob(ft, hosts, what.layout, what.silence_s, what.training)
        stack.callback(job.close)
        try:
            job.start()
            for fault in what.faults:
                result["faults"].append(_do(fault, job))
            job.end(END_S)
            _check(job, result)
        except AssertionError as error:
            result["error"] = str(error)
        result["cycles"] = job.cycle() + 1
    if result["error"] and what.keep:
        shutil.copytree(folder, Path(what.keep) / f"round{what.number}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _do(fault: Fault, job: HostJob) -> dict[str, Any]:
    before, began_at = job.cycle(), time.monotonic()
    hosts, undo = begin(fault, job)
    time.sleep(max(0.0, began_at + fault.lasts_s - time.monotonic()))
    undo()
    undone_at = time.monotonic()
    job.until_settled(f"the job is whole again after {fault}", SETTLED_S)
    found = job.lives()
    later = [life for life in found if life.cycle > before]
    cycles = job.cycle() - before
    if fault.lasts_s <= HARMLESS_S and fault.kind in ("launcher stopped", "processes frozen"):
        assert not cycles, f"{fault}: it cost {cycles} cycles"
    steps = [life.step_at for life in later]
    slept = dict.fromkeys(hosts, undone_at) if fault.kind in SLEEPS else {}
    return {
        "fault": str(fault),
        "kind": fault.kind,
        "leader": 0 in fault.hosts,
        "lasts_s": fault.lasts_s,
        "cycles": cycles,
        "went_on_s": round(min(steps) - began_at, 2) if steps else 0.0,
        "whole_after_s": round(time.monotonic() - undone_at, 1),
        "causes": job.causes(began_at),
        "beside_s": max(0.0, round(beside_s([it for it in found if it.cycle >= before], slept), 2)),
    }


def _check(job: HostJob, result: dict[str, Any]) -> None:
    lines = [line for lines in job.noted() for line in lines]
    broken = broken_rules(job.lives(), lines)
    assert not broken, "; ".join(broken)
    slept = any(it["kind"] in SLEEPS for it in result["faults"])
    beside_s = max((it["beside_s"] for it in result["faults"]), default=0.0)
    allowed_s = AWAKE_BESIDE_S if slept else 0.0
    assert beside_s <= allowed_s, f"ranks of two cycles lived at the same time for {beside_s} s"
