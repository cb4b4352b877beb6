"""All scenarios, a table and JSON: ``python -m tests.harmless``, or ``make harmless``."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harmless import runner
from tests.harmless.scenario import HANGS, HEALTHY, KINDS


def chosen(patterns: str, kinds: list[str], *, healthy: bool, hangs: bool) -> list[tuple[str, str]]:
    """Kinds and names, each kind's in the order of the files."""
    listed = {**(HEALTHY if healthy else {}), **(HANGS if hangs else {})}
    wanted = patterns.split(",")
    return [
        (kind, name)
        for kind in kinds
        for name, made in listed.items()
        if runner.is_of(kind, made) and any(fnmatch.fnmatchcase(name, each) for each in wanted)
    ]


def main(arguments: list[str]) -> int:
    """Exit code 0 when nothing differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.harmless", description=__doc__)
    parser.add_argument("--scenarios", default="*", metavar="NAME,...", help="with wildcards")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KIND,...")
    parser.add_argument("--healthy", action="store_true", help="no planted hangs")
    parser.add_argument("--hangs", action="store_true", help="planted hangs alone")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at a time")
    parser.add_argument("--results", default="build/harmless.jsonl", metavar="FILE")
    parser.add_argument("--for", dest="for_s", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument(
        "--pause",
        dest="pause_s",
        type=float,
        metavar="SECONDS",
        help="of each scenario, with the default floor of 600 s; default: 5 s, floor 1.5 s",
    )
    parser.add_argument("--list", action="store_true")
    parsed = parser.parse_args(arguments)
    if parsed.pause_s is not None:
        runner.use_real_floor(parsed.pause_s)

    kinds = []
    for kind in parsed.kinds.split(","):
        if lacks := runner.missing(kind):
            print(f"harmless: no {kind}, for which this Python lacks {lacks}")
        else:
            kinds.append(kind)
    work = chosen(
        parsed.scenarios, kinds, healthy=not parsed.hangs, hangs=parsed.hangs or not parsed.healthy
    )
    if parsed.list:
        for kind, name in work:
            about = (runner.SCENARIOS[name].__doc__ or "").partition("\n")[0]
            print(f"{kind:10}{name:44}{about}")
        print({kind: sum(each == kind for each, _ in work) for kind in kinds})
        return 0
    results = runner.Results(Path(parsed.results))
    until = time.monotonic() + parsed.for_s
    counted: dict[str, Counter[str]] = {}
    different: dict[str, list[str]] = {}

    def one(place: tuple[str, str]) -> None:
        kind, name = place
        what = f"{kind}, {'hangs' if runner.is_hang(name) else 'healthy'}"
        count = counted.setdefault(what, Counter())
        if time.monotonic() > until:
            count["not run"] += 1
            return
        theirs, ours = runner.compare(kind, name, results)
        found = runner.verdict(theirs, ours)
        count["different" if found else "as it should be"] += 1
        times = "" if theirs is None else f"{theirs.took_s:6.1f}"
        print(
            f"{'DIFFERENT' if found else 'ok':10}{kind:10}{name:42}{times:>7}{ours.took_s:7.1f} s  "
            + " ".join(f"named {named}" for named in ours.named),
            flush=True,
        )
        for line in found:
            print(f"          {line[:400]}", flush=True)
        if found:
            different[f"{kind} {name}"] = found

    with ThreadPoolExecutor(parsed.jobs) as pool:
        list(pool.map(one, work))
    for what, count in counted.items():
        print(f"harmless: {what}: " + ", ".join(f"{n} {text}" for text, n in count.items()))
    print(json.dumps({"counted": counted, "different": different}))
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
