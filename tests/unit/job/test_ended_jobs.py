"""A launcher that comes after its job's end does not start it again; a new run of it does."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.job import ended_jobs
from holdfast.job.pure.membership import End, JobOutcome
from holdfast.job.pure.workload import Workload
from holdfast.node.late_launcher import EndedJobs

WORKLOAD = Workload("script", "train.py", contents="1f", path="a0", slurm_job="7")
WELL = End(JobOutcome.SUCCEEDED, 0, "all ranks succeeded")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ended_jobs, "_TMPFS", str(tmp_path))
    return tmp_path


def jobs(port: int = 29500, run_id: str = "none", workload: Workload = WORKLOAD) -> EndedJobs:
    """Of a launcher that begins now."""
    return EndedJobs(port, run_id, workload)


def test_a_launcher_that_had_begun_before_the_end_hears_the_end() -> None:
    """It was started for that job; its exit code is the job's."""
    late = jobs()
    jobs().note(WELL)
    end = late.end_before_start()
    assert end is not None
    assert (end.outcome, end.exit_code) == (JobOutcome.SUCCEEDED, 0)
    assert end.cause.startswith("all ranks succeeded, 0 s ago")


def test_a_launcher_that_begins_after_the_end_is_a_new_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same command by hand, or a job that is queued again: it says what it knows, and runs."""
    jobs().note(WELL)
    with caplog.at_level(logging.INFO, "holdfast"):
        logging.getLogger("holdfast").propagate = True
        assert jobs().end_before_start() is None
    assert "has succeeded on this endpoint 0 s ago" in caplog.text


@pytest.mark.parametrize(
    "end", [End(JobOutcome.FAILED, 1, "rank 3 died"), End(JobOutcome.SHUT_DOWN, 1, "asked")]
)
def test_a_job_that_failed_may_be_started_again_by_any_launcher(end: End) -> None:
    """Whoever started it wants another attempt, and a launcher may come before the others."""
    late = jobs()
    jobs().note(end)
    assert late.end_before_start() is None


@pytest.mark.parametrize(
    "late",
    [
        {"port": 29501},
        {"run_id": "j2"},
        {"workload": replace(WORKLOAD, name="eval.py", contents="2e", path="b1")},
        {"workload": replace(WORKLOAD, slurm_job="8")},
    ],
)
def test_the_end_of_another_job_concerns_nobody(late: dict[str, object]) -> None:
    """Another endpoint, name, script or allocation."""
    comes = jobs(**late)  # type: ignore[arg-type]
    jobs().note(WELL)
    assert comes.end_before_start() is None


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"op": "endedjob"}', b"\xff" * 70000])
def test_a_record_that_cannot_be_read_is_none(data: bytes) -> None:
    late = jobs()
    ended_jobs.write("29500 none", data)
    assert late.end_before_start() is None


def test_records_of_another_user_are_not_believed(folder: Path) -> None:
    """A folder that others may write to is not used, and the job goes on without a record."""
    (folder / f"holdfast-ended-{os.geteuid()}").mkdir()
    (folder / f"holdfast-ended-{os.geteuid()}").chmod(0o777)
    late = jobs()
    jobs().note(WELL)
    assert late.end_before_start() is None
    assert not list(folder.glob("holdfast-ended-*/*"))


def test_old_records_are_removed(folder: Path) -> None:
    jobs().note(WELL)
    (old,) = folder.glob("holdfast-ended-*/*")
    os.utime(old, (1.0, 1.0))
    jobs(run_id="j2").note(WELL)
    assert len(list(folder.glob("holdfast-ended-*/*"))) == 1
    assert not old.exists()
