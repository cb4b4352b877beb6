"""Hosts and launchers that stand still, sleep, or cannot reach each other, with real processes.

``python -m tests.host_soak [stalls] [freezes] [links] [random] [--seed N]``: in parts, all of them
by default; prints one line for each fault, and JSON at the end. Hosts are network namespaces with a
control group each, so all but ``stalls`` needs root and ``ip``.

- stalls: launchers of many small jobs stand still for 3 s (SIGSTOP), 1,000 times, with the default
  timeouts and with ``keep_alive_timeout=5``: no rank is lost by that.
- freezes: all processes of a host stand still for 3, 10 or 60 s; also with its link down meanwhile.
- links: one that is cut, halves of the network, loss in one direction.
- random: rounds of some of these in a real training with gloo.

After each fault the job is whole again; no rank number has two owners, no ranks of two cycles live
at a time, no checkpoint is older than the last one; all exit with 0, and no process is left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.host_soak import stalls
from tests.host_soak.faults import broken_links, drawn, frozen_hosts
from tests.host_soak.hosts import LAYOUTS
from tests.host_soak.rounds import Round, run

SILENCES_S = [15.0, 5.0]
"""``keep_alive_timeout``: by default, and a short one."""
STALL_S = 3.0
FAULTS_OF_A_ROUND = 3
PARTS = ("stalls", "freezes", "links", "random")


def rounds(part: str, wanted: argparse.Namespace) -> list[Round]:
    """All of a part, but for stalls."""
    keep = wanted.keep
    if part == "random":
        rng = random.Random(wanted.seed)
        found = []
        for number in range(wanted.rounds):
            layout = rng.choice(LAYOUTS)
            silence_s = rng.choice(wanted.silences)
            faults = tuple(drawn(layout.hosts, silence_s, rng) for _ in range(FAULTS_OF_A_ROUND))
            found.append(Round(number, layout, faults, silence_s, "gloo", keep))
        return found
    faults_of = frozen_hosts if part == "freezes" else broken_links
    alone = [(layout, fault) for layout in LAYOUTS for fault in faults_of(layout.hosts)]
    kinds = random.Random(wanted.seed).choices(["", "stays"], k=len(alone))
    return [
        Round(number, layout, (fault,), wanted.silences[0], kinds[number], keep)
        for number, (layout, fault) in enumerate(alone)
    ]


def _run_rounds(part: str, wanted: argparse.Namespace) -> list[dict[str, Any]]:
    planned = rounds(part, wanted)
    if wanted.only:
        planned = [it for it in planned if it.number in wanted.only]
    found = []
    with multiprocessing.Pool(wanted.jobs, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(run, planned):
            for it in result["faults"]:
                went_on = f"went on after {it['went_on_s']:g} s" if it["cycles"] else "no restart"
                print(
                    f"{part} {result['round']}: {result['layout']}, {result['silence_s']:g} s: "
                    f"{it['fault']}: {went_on}, {it['cycles']} cycles, whole again "
                    f"{it['whole_after_s']:g} s after it, two cycles beside {it['beside_s']:g} s"
                    f"{''.join(f'; {cause}' for cause in it['causes'])}",
                    flush=True,
                )
            if result["error"]:
                print(
                    f"{part} {result['round']}: {result['layout']}: FAILED after "
                    f"{len(result['faults'])} faults: {result['error']}",
                    flush=True,
                )
            found.append(result)
    return found


def _run_stalls(wanted: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for silence_s in wanted.silences:
        with tempfile.TemporaryDirectory(prefix="holdfast_stalls_") as folder:
            done = stalls.run(
                Path(folder),
                wanted.stalls,
                wanted.stall_jobs,
                STALL_S,
                silence_s,
                wanted.seed,
                wanted.keep,
            )
        found.append(done)
        print(
            f"stalls: {done['stalls']} of {STALL_S:g} s with keep_alive_timeout={silence_s:g}, the "
            f"longest {done['longest_s']:g} s: {done['harmed']} of {done['jobs']} jobs were harmed",
            flush=True,
        )
        for error in done["errors"]:
            print(f"  {error}", flush=True)
    return found


def summary(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Medians and worst times, by kind of fault and the host that it was done to."""
    times: dict[str, list[float]] = {}
    for result in results:
        for it in result["faults"]:
            if it["cycles"]:
                who = "leader" if it["leader"] else "other"
                key = f"{it['kind']}, {who}, keep_alive_timeout={result['silence_s']:g}"
                times.setdefault(key, []).append(it["went_on_s"])
    return {
        key: {
            "times": len(took),
            "median_s": round(statistics.median(took), 2),
            "worst_s": max(took),
        }
        for key, took in sorted(times.items())
    }


def main(words: list[str]) -> int:
    """Exit code 0: no rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.host_soak")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), metavar="N")
    parser.add_argument("--stalls", type=int, default=1000, metavar="N")
    parser.add_argument("--stall-jobs", type=int, default=15, metavar="N")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="jobs side by side")
    parser.add_argument("--silences", type=float, nargs="*", default=SILENCES_S, metavar="SECONDS")
    parser.add_argument("--only", type=int, nargs="*", default=[], metavar="ROUND")
    parser.add_argument("--keep", default="", metavar="DIR", help="files of rounds that fail")
    wanted = parser.parse_args(words)
    print(f"hosts: seed {wanted.seed}", flush=True)
    began_at = time.monotonic()
    found: dict[str, Any] = {"seed": wanted.seed}
    is_good = True
    for part in wanted.parts or PARTS:
        if part == "stalls":
            found[part] = _run_stalls(wanted)
            is_good &= not any(it["harmed"] for it in found[part])
        else:
            results = _run_rounds(part, wanted)
            found[part] = {"rounds": len(results), "went_on": summary(results)}
            found[part]["failed"] = [it for it in results if it["error"]]
            is_good &= not found[part]["failed"]
    found["took_s"] = round(time.monotonic() - began_at)
    print(json.dumps(found))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
