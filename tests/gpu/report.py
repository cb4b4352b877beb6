"""What each test of a GPU found: written after each, one table at the end, and rows to read.

python -m tests.gpu.report bench/results/gpu-*.json     # for tests/gpu/seen.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HELD, BROKE, SKIPPED, NOT_REACHED = "held", "BROKE", "skipped", "not reached"


@dataclass
class Found:
    """What one test found.

    Attributes:
        name: Of the test.
        claim: What it shows, one sentence.
        outcome: One of the four above.
        seconds: How long it took.
        why: The failure or the reason of the skip; its first line.
        detail: Of a failure: where, and the last lines of what was started. In the file only.
        figures: Quantities, by name; the unit is in the name.
        notes: What a person should read.
    """

    name: str
    claim: str
    outcome: str = NOT_REACHED
    seconds: float = 0.0
    why: str = ""
    detail: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def figure(self, name: str, value: float) -> None:
        """Keep a quantity."""
        self.figures[name] = round(float(value), 4)

    def note(self, text: str) -> None:
        """Keep a sentence."""
        self.notes.append(" ".join(text.split()))


class Report:
    """All of them, in the order in which they run; kept in a file after each.

    Args:
        path: Of the JSON file; its folder is made.
        host: What the figures depend on: driver, CUDA, torch, GPU.
    """

    def __init__(self, path: Path, host: Mapping[str, Any]) -> None:
        self.path = path
        self.host = dict(host)
        self.found: list[Found] = []

    def write(self) -> None:
        """Replace the file: a reader sees the old results or the new ones."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        tests = [asdict(found) for found in self.found]
        new.write_text(json.dumps({**self.host, "tests": tests}, indent=1) + "\n")
        new.rename(self.path)

    def table(self) -> str:
        """For people: a line for each test, its figures and notes below."""
        host = ", ".join(f"{key} {value}" for key, value in self.host.items())
        lines = ["", f"GPU suite: {host}"]
        for found in self.found:
            why = f": {found.why}" if found.why else ""
            line = f"  {found.outcome:11} {found.seconds:6.1f} s  {found.name}{why}"
            lines.append(line[:220])
            figures = [f"{name} {value:g}" for name, value in found.figures.items()]
            lines += [f"{'':24}{figure}" for figure in figures]
            lines += [f"{'':24}{note[:400]}" for note in found.notes]
        counts = {
            outcome: sum(found.outcome == outcome for found in self.found)
            for outcome in (HELD, BROKE, SKIPPED, NOT_REACHED)
        }
        total = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        return "\n".join([*lines, f"{total}; {self.path}", ""])


def rows(results: Mapping[str, Any]) -> list[str]:
    """A row for each test of a result file: docs/compatibility.md shows tests/gpu/seen.json.

    Raises:
        ValueError: They are those of the stand-in, which show nothing about a GPU.
    """
    if results.get("is_stand_in"):
        raise ValueError("these results are of the stand-in on the CPU: no GPU was seen")
    keys = ("gpu", "driver", "cuda", "torch", "nccl")
    where = ", ".join(f"{key} {results[key]}" for key in keys if results.get(key))
    lines = []
    for found in results["tests"]:
        figures = ", ".join(f"{name} {value:g}" for name, value in found["figures"].items())
        outcome = {HELD: "yes", BROKE: "no", SKIPPED: "skipped"}.get(found["outcome"], "not yet")
        why = f": {found['why']}" if found["why"] else ""
        lines.append(f"| {found['claim']} | {outcome}{why} | {where} | {figures} |")
    return lines


def main(paths: Sequence[str]) -> None:
    """Print rows."""
    print("| claim | seen on a GPU | where | figures |\n|---|---|---|---|")
    for path in paths:
        print("\n".join(rows(json.loads(Path(path).read_text()))))


if __name__ == "__main__":
    main(sys.argv[1:])
