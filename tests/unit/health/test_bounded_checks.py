"""Probes run side by side, each within its bound."""

from __future__ import annotations

import threading

from holdfast.health.bounded import BoundedChecks, BoundedProbe
from holdfast.health.pure.health import Finding, Fitness


def fact(text: str, probe: str = "host") -> Finding:
    return Finding(probe, "thing", Fitness.HEALTHY, text)


def test_every_finding_is_told() -> None:
    said: list[Finding] = []
    checks = [
        BoundedProbe("a", 30.0, lambda: [fact("1"), fact("2")]),
        BoundedProbe("b", 30.0, lambda: [fact("3")]),
    ]
    BoundedChecks().run(checks, said.append)
    assert sorted(finding.text for finding in said) == ["1", "2", "3"]


def test_a_probe_that_fails_knows_nothing() -> None:
    said: list[Finding] = []

    def fails() -> list[Finding]:
        raise OSError(5, "Input/output error")

    BoundedChecks().run([BoundedProbe("gpu", 30.0, fails)], said.append)
    text = "OSError: [Errno 5] Input/output error"
    assert said == [Finding("gpu", "check", Fitness.UNKNOWN, text)]


def test_a_probe_that_hangs_holds_up_nobody_and_is_not_started_again_before_it_is_back() -> None:
    """Its late answer is of an earlier question, and is not told."""
    told_to_go, starts, said = threading.Event(), [], []

    def hangs() -> list[Finding]:
        starts.append(1)
        told_to_go.wait(60.0)
        return [fact("late", "gpu")]

    checks = BoundedChecks()
    hanging, other = (
        BoundedProbe("gpu", 0.05, hangs),
        BoundedProbe("host", 30.0, lambda: [fact("well")]),
    )
    checks.run([hanging, other], said.append)
    texts = sorted(finding.text for finding in said)
    assert texts == ["did not answer within 0.05 s", "well"]

    said.clear()
    checks.run([hanging], said.append)
    assert [finding.verdict for finding in said] == [Fitness.UNKNOWN]
    assert "hangs since" in said[0].text

    told_to_go.set()
    for thread in threading.enumerate():
        if thread.name == "gpu":
            thread.join(30.0)
    assert len(starts) == 1
    said.clear()
    checks.run([BoundedProbe("gpu", 30.0, lambda: [fact("now", "gpu")])], said.append)
    assert [finding.text for finding in said] == ["now"]
