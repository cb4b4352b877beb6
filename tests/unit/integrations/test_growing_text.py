"""A log that grows, as one tensor of bytes."""

from __future__ import annotations

import math
from typing import Any

import torch

from holdfast.integrations._text_tensor import GrowingText


def test_entries_come_back_and_the_log_goes_on_from_there() -> None:
    log: list[Any] = [{"loss": 0.1, "step": 1}, {"eval_loss": float("inf"), "name": "\nü"}]
    text, length = GrowingText().of(log)
    other = GrowingText()
    again = other.entries(text.clone(), length)
    assert again == log
    again.append({"loss": 0.2})
    assert GrowingText().entries(*other.of(again)) == again


def test_the_tensor_is_the_same_object_until_it_is_full() -> None:
    """So that the layout of a snapshot stays the same."""
    text, log = GrowingText(), list[Any]()
    sizes = set()
    for step in range(1000):
        log.append({"loss": step / 7, "step": step})
        tensor, length = text.of(log)
        sizes.add(len(tensor))
    assert len(sizes) <= 5
    assert GrowingText().entries(tensor, length) == log


def test_a_log_that_was_replaced_is_written_anew() -> None:
    text = GrowingText()
    text.of([{"step": 1}, {"step": 2}])
    assert GrowingText().entries(*text.of([{"step": 7}])) == [{"step": 7}]
    assert GrowingText().entries(*text.of([])) == []


def test_numbers_of_torch_are_numbers() -> None:
    [entry] = GrowingText().entries(*GrowingText().of([{"loss": torch.tensor(2.5)}]))
    assert math.isclose(entry["loss"], 2.5)
