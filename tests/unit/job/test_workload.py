"""Which launchers belong to one job: tables, and what a line about two says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import decode, encode
from holdfast.job.pure.membership import MESSAGES, Descriptor, Join
from holdfast.job.pure.workload import Workload, argument_digests, difference, text_digest


def script(name: str = "train.py", *arguments: str, text: str = "", folder: str = "/a") -> Workload:
    """A script of this name, with these contents, in this folder."""
    return Workload(
        "script",
        name,
        contents=text_digest(text or name),
        path=text_digest(f"{folder}/{name}"),
        arguments=argument_digests(arguments),
        is_named=True,
    )


JOB = script("train.py", "--lr", "0.1", "--node", "a")
UNNAMED = replace(JOB, is_named=False)
IN_SLURM = replace(UNNAMED, slurm_job="17")
IN_STEP = replace(IN_SLURM, slurm_step="0.0")
MODULE = Workload("module", "pkg.train", is_named=True)
FUNCTION = Workload("function", "pkg.train", is_named=True)
PROGRAM = Workload("program", "python3", is_named=True)


@pytest.mark.parametrize(
    ("job", "its"),
    [
        (JOB, script("eval.py")),
        (JOB, script("train.py", text="another's", folder="/b")),
        (JOB, MODULE),
        (MODULE, replace(MODULE, name="pkg.evaluate")),
        (FUNCTION, replace(FUNCTION, name="pkg.evaluate")),
        (PROGRAM, replace(PROGRAM, kind="script", name="python3")),
        (replace(JOB, slurm_job="17"), replace(script("eval.py"), slurm_job="17")),
        (IN_STEP, replace(script("eval.py"), slurm_job="17", slurm_step="1.0")),
        (replace(JOB, is_mixed=True), script("eval.py")),
        (IN_SLURM, replace(IN_SLURM, slurm_job="18")),
        (IN_STEP, replace(IN_STEP, slurm_job="18")),
    ],
)
def test_a_launcher_of_another_job_is_told_apart(job: Workload, its: Workload) -> None:
    """By what it runs; or, where nobody named the jobs, because Slurm says that they are two."""
    for one, other in ((job, its), (its, job)):
        found = difference(one, other)
        assert found is not None
        assert found.is_another_job


@pytest.mark.parametrize(
    ("job", "its"),
    [
        (JOB, replace(script("train.py", "--lr", "0.1", "--node", "a", folder="/b"))),
        (JOB, replace(JOB, name="copy.py", path=text_digest("/b/copy.py"))),
        (JOB, replace(JOB, slurm_job="17", slurm_step="0.0")),
        (replace(JOB, slurm_job="17"), replace(JOB, slurm_job="18")),
        (IN_SLURM, UNNAMED),
        (JOB, None),
        (None, JOB),
    ],
)
def test_one_job_may_look_different_on_each_node(
    job: Workload | None, its: Workload | None
) -> None:
    """The same script mounted elsewhere, named jobs that span allocations, older launchers."""
    assert difference(job, its) is None
    assert difference(its, job) is None


@pytest.mark.parametrize(
    ("its", "text"),
    [
        (
            script("train.py", "--lr", "0.1", "--node", "b"),
            "argument 4 of 4 of the script is not the leader's",
        ),
        (
            script("train.py", "--lr", "0.2", "--node", "b"),
            "argument 2 of 4 of the script is not the leader's, and 1 more",
        ),
        (script("train.py"), "the script gets 0 arguments there, and 4 from the leader"),
        (
            replace(JOB, min_nodes=1, max_nodes=2),
            "it has --nnodes 1:2, and the leader's 1 counts",
        ),
        (
            replace(JOB, max_restarts=3),
            "it has --max-restarts 3, and the leader's 0 counts",
        ),
        (
            replace(JOB, contents=text_digest("edited")),
            (
                f"the contents of train.py differ (sha256 {text_digest('edited')[:8]}, the "
                f"leader's {text_digest('train.py')[:8]})"
            ),
        ),
    ],
)
def test_what_torchrun_would_run_is_only_reported(its: Workload, text: str) -> None:
    """Arguments of each node's own, an edited script, other numbers: nothing proves another job."""
    found = difference(JOB, its)
    assert found is not None
    assert not found.is_another_job
    assert found.text == text


def test_nodes_of_one_job_run_different_programs_where_that_is_said() -> None:
    """By the scheduler, which started both in one step, or by the user, to all launchers."""
    other = script("serve.py", "--lr", "0.1", "--node", "a")
    pairs = [
        (IN_STEP, replace(other, is_named=False, slurm_job="17", slurm_step="0.0")),
        (replace(JOB, is_mixed=True), replace(other, is_mixed=True)),
    ]
    for job, its in pairs:
        found = difference(job, its)
        assert found is not None
        assert not found.is_another_job
        assert found.text == "it runs script serve.py, the leader script train.py"


def test_a_program_without_text_may_be_called_otherwise() -> None:
    """``python3`` on one node is ``python3.12`` on another."""
    found = difference(PROGRAM, replace(PROGRAM, name="python3.12"))
    assert found is not None
    assert not found.is_another_job
    assert found.text == "it runs python3.12, the leader python3"


def test_another_job_is_described_with_its_numbers() -> None:
    its = replace(script("eval.py", "--fast"), min_nodes=1, max_nodes=4)
    found = difference(JOB, its)
    assert found is not None
    assert found.text == (
        f"it was started to run script eval.py (sha256 {text_digest('eval.py')[:8]}, 1 argument, "
        f"--nnodes 1:4), and the job runs script train.py (sha256 {text_digest('train.py')[:8]}, "
        "4 arguments, --nnodes 1)"
    )


@given(st.lists(st.text(), max_size=1200), st.integers(0, 1199))
def test_arguments_leave_no_trace_but_whether_they_are_equal(words: list[str], at: int) -> None:
    """4 digits for each, however many there are; a message can always carry them."""
    digests = argument_digests(words)
    assert len(digests) == 4 * min(len(words), 1000)
    assert digests == argument_digests(list(words))
    joined = Join("n1", Descriptor("", "h", 1, 7, workload=replace(JOB, arguments=digests)))
    assert decode(MESSAGES, encode(joined)) == joined
    if at < len(words):
        changed = [*words[:at], words[at] + "x", *words[at + 1 :]]
        where = min(at, 999) * 4
        assert digests[:where] == argument_digests(changed)[:where]


def test_launchers_of_an_older_version_are_understood() -> None:
    """They send no workload, and ignore ours."""
    ours = encode(Join("n1", Descriptor("", "h", 1, 7, workload=JOB)))
    desc = ours["desc"]
    assert isinstance(desc, dict)
    del desc["workload"]
    assert decode(MESSAGES, ours) == Join("n1", Descriptor("", "h", 1, 7))
