"""Sums that Lightning makes over an epoch: values of ``self.log(on_epoch=True)``, and torchmetrics.

Lightning knows a value only from its first ``log`` on, so a sum of before is added then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from holdfast.integrations._surround import replace


class EpochSums:
    """Of the training, in the epoch that is open."""

    def __init__(self) -> None:
        self._left: dict[str, dict[str, torch.Tensor]] = {}

    def state(self, results: Any, module: Any) -> dict[str, Any]:
        """Sums by key, and the states of metrics by the name of their module."""
        logged = {
            key: {
                name: getattr(metric, name)
                for name in ("value", "cumulated_batch_size")
                if hasattr(metric, name)
            }
            for key, metric in results.items()
            if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
        }
        metrics = {
            name: {"n": metric._update_count, "state": dict(metric.metric_state)}
            for name, metric in _metrics(module)
        }
        return {"logged": {**self._left, **logged}, "metrics": metrics}

    def put_back(self, results: Any, module: Any, state: dict[str, Any]) -> None:
        """Metrics now, logged values at their first ``log``."""
        for name, metric in _metrics(module):
            if (own := state["metrics"].get(name)) is not None:
                for key, value in own["state"].items():
                    setattr(metric, key, value)
                metric._update_count = own["n"]
        self._left = dict(state["logged"])
        if not self._left:
            return

        def log(original: Any, *args: Any, **kwargs: Any) -> None:
            known = set(results)
            original(*args, **kwargs)
            for key in self._left.keys() & (results.keys() - known):
                _add(results[key], self._left.pop(key))
            if not self._left:
                undo()

        undo = replace(results, "log", log)

    def forget(self) -> None:
        """The epoch has ended."""
        self._left.clear()


def _add(metric: Any, before: dict[str, torch.Tensor]) -> None:
    meta = metric.meta
    if meta.is_mean_reduction or meta.is_sum_reduction:
        for name, value in before.items():
            setattr(metric, name, getattr(metric, name) + value)
    else:
        metric.value = meta.reduce_fx(before["value"], metric.value)


def _metrics(module: Any) -> Iterator[tuple[str, Any]]:
    """Metrics of torchmetrics among its parts."""
    for name, each in module.named_modules():
        if hasattr(each, "metric_state") and hasattr(each, "_update_count"):
            yield name, each
