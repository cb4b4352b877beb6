"""One job and the faults that are done to it, in a process of its own: hosts are named by pid."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.pure.excuse import LATE_S
from holdfast.job.pure.timing import Pace
from tests.host_soak.faults import SLEEPS, Fault, begin
from tests.host_soak.hosts import HostJob, Layout
from tests.host_soak.lives import Awake, beside_s, broken_rules
from tests.real.harness import launcher
from tests.real.hosts import network

SETTLED_S = 200.0
"""A launcher without a majority waits for 130 s; a node that is awaited, 120 s."""
END_S = 60.0
HARMLESS_S = 3.0
"""What stands still for no longer costs no ranks; a lost packet may come again much later."""


def awake_beside_s(silence_s: float) -> float:
    """How long ranks of a host that slept may run beside their successors, when it is awake."""
    return Pace.of(silence_s).ask_s + LATE_S


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
    awake: list[Awake] = []
    with ExitStack() as stack:
        hosts = stack.enter_context(network(folder))
        ft = stack.enter_context(launcher(folder))
        job = HostJob(ft, hosts, what.layout, what.silence_s, what.training)
        stack.callback(job.close)
        try:
            job.start()
            for fault in what.faults:
                result["faults"].append(_do(fault, job, awake))
            job.end(END_S)
            _check(job, awake)
        except AssertionError as error:
            result["error"] = str(error)
        result["cycles"] = job.cycle() + 1
    if result["error"] and what.keep:
        shutil.copytree(folder, Path(what.keep) / f"round{what.number}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _do(fault: Fault, job: HostJob, awake: list[Awake]) -> dict[str, Any]:
    before, began_at = job.cycle(), time.monotonic()
    hosts, undo = begin(fault, job)
    time.sleep(max(0.0, began_at + fault.lasts_s - time.monotonic()))
    woken_at = time.monotonic()
    undo()
    undone_at = time.monotonic()
    may_last_s = awake_beside_s(job.silence_s)
    if fault.kind in SLEEPS:
        awake += [Awake(host, woken_at, undone_at + may_last_s) for host in hosts]
    job.until_settled(f"the job is whole again after {fault}", SETTLED_S)
    found = job.lives()
    later = [life for life in found if life.cycle > before]
    cycles = job.cycle() - before
    if fault.lasts_s <= HARMLESS_S and fault.kind in ("launcher stopped", "processes frozen"):
        assert not cycles, f"{fault}: it cost {cycles} cycles"
    steps = [life.step_at for life in later]
    slept = dict.fromkeys(hosts, undone_at) if fault.kind in SLEEPS else {}
    beside = beside_s([it for it in found if it.cycle >= before], slept)
    too_long = {it: s for it, s in beside.items() if s > (may_last_s if it in slept else 0.0)}
    assert not too_long, f"{fault}: ranks of two cycles lived at the same time, by host: {too_long}"
    return {
        "fault": str(fault),
        "kind": fault.kind,
        "leader": 0 in fault.hosts,
        "lasts_s": fault.lasts_s,
        "cycles": cycles,
        "went_on_s": round(min(steps) - began_at, 2) if steps else 0.0,
        "whole_after_s": round(time.monotonic() - undone_at, 1),
        "causes": job.causes(began_at),
        "beside_s": round(max(beside.values(), default=0.0), 2),
    }


def _check(job: HostJob, awake: list[Awake]) -> None:
    lines = [line for lines in job.noted() for line in lines]
    broken = broken_rules(job.lives(), lines, awake)
    assert not broken, "; ".join(broken)
