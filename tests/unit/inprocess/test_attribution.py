"""What interrupted an iteration, as text and back."""

from __future__ import annotations

import pytest

from holdfast.inplace.pure.job_calls import FaultKind
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_record_comes_back_from_its_text(kind) -> None:
    """As printed, and as shown in a list."""
    record = InterruptionRecord(3, Interruption[kind.name])
    assert str(record) == f"InterruptionRecord(rank=3, interruption=Interruption.{kind.name})"
    assert InterruptionRecord.from_str(str(record)) == record
    assert InterruptionRecord.from_str(f" {record!r}\n") == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EXCEPTION",
        "InterruptionRecord(rank=x, interruption=Interruption.EXCEPTION)",
        "InterruptionRecord(rank=3, interruption=Interruption.NOTHING)",
        "InterruptionRecord(rank=3, interruption=Interruption.EXCEPTION) and more",
    ],
)
def test_what_is_no_record_is_a_value_error(text) -> None:
    """It shows the text."""
    with pytest.raises(ValueError, match="not an InterruptionRecord"):
        InterruptionRecord.from_str(text)
