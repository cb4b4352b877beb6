"""Room on disks, descriptors, and clocks that run together."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.health import host_probe
from holdfast.health.host_probe import HostProbe, Sample, compare, descriptors, room
from holdfast.health.pure.health import Fitness


def space(
    free_mib: int = 10_000, inodes: int = 1000, files: int = 5000, blocks: int = 10**9
) -> SimpleNamespace:
    return SimpleNamespace(
        f_blocks=blocks,
        f_bfree=free_mib * 256,
        f_bavail=free_mib * 256,
        f_frsize=4096,
        f_favail=inodes,
        f_files=files,
    )


# ---------------------------------------------------------------- disks
@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (space(), Fitness.HEALTHY),
        (space(free_mib=63), Fitness.SUSPECT),
        (space(free_mib=0), Fitness.SUSPECT),
        (space(inodes=0), Fitness.SUSPECT),
        (space(inodes=0, files=0), Fitness.HEALTHY),
        (space(free_mib=0, blocks=0), Fitness.HEALTHY),
    ],
)
def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, found, verdict) -> None:
    """Btrfs has no inodes to count, a tmpfs may have no limit at all."""
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert [finding.verdict for finding in room(["/a"])] == [verdict]


def test_of_a_folder_that_is_not_there_yet_the_one_above_is_looked_at(tmp_path: Path) -> None:
    [finding] = room([str(tmp_path / "logs" / "run")])
    assert finding.verdict is not Fitness.UNKNOWN
    assert finding.subject == str(tmp_path / "logs" / "run")


def test_a_disk_that_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "statvfs", fails)
    [finding] = room(["/a", "/a"])
    assert finding.verdict is Fitness.UNKNOWN
    assert "Permission denied" in finding.text


def test_the_reserve_of_a_disk_is_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space()
    found.f_bavail = 0
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    for user, verdict in ((0, Fitness.HEALTHY), (1000, Fitness.SUSPECT)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert [finding.verdict for finding in room(["/a"])] == [verdict]


# ---------------------------------------------------------------- descriptors
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("1000\t0\t9223372036854775807\n", Fitness.HEALTHY),
        ("95\t0\t100\n", Fitness.SUSPECT),
        ("many\n", Fitness.UNKNOWN),
        (None, Fitness.UNKNOWN),
    ],
)
def test_a_host_that_is_nearly_out_of_open_files_is_suspect(
    tmp_path: Path, text: str | None, verdict: Fitness
) -> None:
    if text is not None:
        (tmp_path / "file-nr").write_text(text)
    of_host, _ = descriptors(str(tmp_path / "file-nr"), 65536)
    assert (of_host.subject, of_host.verdict) == ("open files", verdict)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(256, Fitness.SUSPECT), (1024, Fitness.HEALTHY), (-1, Fitness.HEALTHY)],
)
def test_a_process_that_may_open_few_files_is_suspect(limit: int, verdict: Fitness) -> None:
    """-1 is no limit at all."""
    _, of_process = descriptors(process_limit=limit)
    assert of_process.verdict is verdict


# ---------------------------------------------------------------- clocks
BEFORE = Sample(100.0, 200.0, 1e9)


def later(seconds: float, *, suspended: float = 0.0, set_by: float = 0.0, apart_s: float = 0.0):
    elapsed = seconds + suspended
    return Sample(100.0 + seconds, 200.0 + elapsed, 1e9 + elapsed + set_by, apart_s)


def test_a_wall_clock_that_was_set_is_told_with_its_step() -> None:
    finding = compare(BEFORE, later(60.0, set_by=-3600.0))
    assert finding.verdict is Fitness.SUSPECT
    assert "set by -3600.0 s within 60 s" in finding.text


def test_a_host_that_was_suspended_is_told_for_how_long() -> None:
    """Its wall clock went on rightly."""
    finding = compare(BEFORE, later(5.0, suspended=30.0))
    assert finding.verdict is Fitness.SUSPECT
    assert "suspended for 30.0 s" in finding.text
    assert "wall clock" not in finding.text


def test_samples_that_took_long_to_take_prove_nothing() -> None:
    assert compare(BEFORE, later(5.0, set_by=2.0, apart_s=3.0)).verdict is Fitness.HEALTHY


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e4), st.floats(-1e6, 1e6))
def test_clocks_are_suspect_exactly_when_they_parted(seconds, suspended, set_by) -> None:
    verdict = compare(BEFORE, later(seconds, suspended=suspended, set_by=set_by)).verdict
    if suspended > 0.6 or abs(set_by) > 0.6:
        assert verdict is Fitness.SUSPECT
    elif suspended < 0.4 and abs(set_by) < 0.4:
        assert verdict is Fitness.HEALTHY


def test_what_happened_to_the_clocks_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([BEFORE, later(1.0, set_by=9.0), later(2.0, set_by=9.0)])
    monkeypatch.setattr(host_probe, "sample", lambda: next(samples))
    probe = HostProbe([])
    assert [probe.look()[-1].verdict for _ in range(2)] == [Fitness.SUSPECT, Fitness.HEALTHY]


# ---------------------------------------------------------------- this host
def test_this_host_is_looked_at_and_its_clocks_run_together(tmp_path: Path) -> None:
    findings = HostProbe([str(tmp_path), "/dev/shm"]).look()
    names = [finding.subject for finding in findings]
    assert names == [
        str(tmp_path),
        "/dev/shm",
        "open files",
        "open files per process",
        "clocks",
    ]
    assert findings[-1].verdict in (Fitness.HEALTHY, Fitness.SUSPECT)
