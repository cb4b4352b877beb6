"""Which launchers take part in a job, and which are refused."""

from __future__ import annotations

from dataclasses import replace

from holdfast.base.pure.common_events import Note
from holdfast.job.pure.job_admission import JobAdmission
from holdfast.job.pure.membership import Beat, Descriptor, Join, Leave, LeaveWhy, NodeRefused, Offer
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.workload import Workload

JOB = Workload("script", "train.py", contents="1f", path="a0", is_named=True)


def join(node: str, workload: Workload | None = JOB) -> Join:
    return Join(node, Descriptor(node, node, 1, 1, workload=workload))


def admission(*lost: str) -> JobAdmission:
    """Of a job that has given these up, silent for 15 s."""
    nodes = Nodes()
    for node in lost:
        nodes.join(join(node), 0.0)
        nodes.lose(node, "it was silent", 15.0)
    return JobAdmission(JOB, nodes)


def test_a_node_that_was_given_up_is_refused_once() -> None:
    one = admission("a")
    refused = NodeRefused("a", "it was silent", may_return=True)
    assert one.refusal(Beat("a"), is_over=False) == refused
    assert one.refusal(Beat("a"), is_over=False) is None


def test_a_node_that_was_given_up_may_not_come_back_to_a_job_that_is_over() -> None:
    refused = admission("a").refusal(Beat("a"), is_over=True)
    assert refused is not None
    assert not refused.may_return


def test_a_node_that_leaves_is_not_refused() -> None:
    assert admission("a").refusal(Leave("a", LeaveWhy.FINISHED), is_over=False) is None


def test_a_silent_node_that_looks_for_a_leader_is_refused_again() -> None:
    """The refusal before may have been sent on a connection that is broken."""
    one = admission("a")
    for _ in range(2):
        refused = one.refusal(Offer("a", 1, join("a"), ()), is_over=False)
        assert refused is not None
        assert "15" in refused.why


def test_a_launcher_of_another_job_is_refused() -> None:
    """R-3."""
    one = admission()
    is_refused, (refused, note) = one.refuses(
        join("x", replace(JOB, name="eval.py", contents="2e", path="b1"))
    )
    assert is_refused
    assert isinstance(refused, NodeRefused)
    assert isinstance(note, Note)
    assert one.nodes.is_gone("x")


def test_another_difference_is_reported_once_and_refuses_no_launcher() -> None:
    one = admission()
    other = replace(JOB, arguments="beef")
    is_refused, notes = one.refuses(join("a", other))
    assert (is_refused, len(notes)) == (False, 1)
    assert one.refuses(join("b", other)) == (False, [])
    assert one.refuses(join("c")) == (False, [])
    assert one.refuses(join("d", None)) == (False, [])
