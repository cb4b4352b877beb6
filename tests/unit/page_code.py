"""Runs the Python of pages: ``python -m tests.unit.page_code < pages.json``, all in one process.

Input: ``{page: [block, ...]}``. Each page has a forked child, in a folder of its own, whose blocks
share one namespace, as a reader would paste them one after the other. A name that the page leaves
to its reader is a stand-in. Output: ``{page: traceback}``, empty where the page ran.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from sphinx.ext.autodoc.mock import mock

from tests.real import light_torch  # noqa: F401 - or each page imports the compiler

TRACKERS = ("wandb", "mlflow", "tensorboard")
TRAINERS = ("lightning", "pytorch_lightning", "transformers", "accelerate")


class Training:
    """A training of two steps, as pages use it."""

    def __init__(self, *_: object) -> None:
        self.step = 0
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def train_step(self) -> None:
        self.step += 1

    def resume(self) -> dict[str, Any]:
        return {}

    def save(self, *_: object) -> None: ...
    def finish(self) -> None: ...


def stand_ins(page: str) -> dict[str, Any]:
    """Names that are more than a ``MagicMock`` can be."""
    import holdfast.fault_tolerance as ft
    from holdfast.inprocess import CallWrapper, Wrapper
    from holdfast.snapshot import Snapshots

    in_place = {"client": ft.client(), "Snapshots": Snapshots, "load_checkpoint": lambda: 0}
    training = Training()
    return {
        "args": SimpleNamespace(steps=2, checkpoint_every=1),
        "batches": MagicMock(return_value=[1, 2], __iter__=lambda _: iter([1, 2])),
        "gpt": SimpleNamespace(Training=Training),
        "training": training,
        "Training": Training,
        "run_dir": Path("checkpoints"),
        "torch": torch,
        **(in_place if page.endswith("inprocess.md") else {}),
        "CallWrapper": CallWrapper,
        "Wrapper": Wrapper,
    }


AFTERWARDS = {"docs/inprocess.md": "step = 0; train()"}
"""Code that uses what a page has defined."""
INSTEAD = {
    "docs/inprocess.md": ("optimizer.step(); step += 1", "optimizer.step()"),
    "docs/chaos.md": ("after_s=30.0", "after_s=3000.0"),
}
"""A variable of the reader's function; a fault that would come while the page still runs."""


def free_names(text: str) -> Iterator[str]:
    """Names that are read and nowhere given a value."""
    nodes = list(ast.walk(ast.parse(text)))
    given = {
        node.id for node in nodes if isinstance(node, ast.Name) and type(node.ctx) is ast.Store
    }
    given |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            given |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in given and not hasattr(builtins, node.id):
            yield node.id


def run(page: str, blocks: list[str]) -> None:
    if page.endswith("trackers.md"):
        os.environ.update(RANK="0", TORCHELASTIC_RUN_ID="run7")
        for name in (*TRACKERS, "torch.utils.tensorboard"):
            sys.modules[name] = MagicMock()
    missing = [name for name in TRAINERS if importlib.util.find_spec(name) is None]
    text = "\n".join(blocks).replace(*INSTEAD.get(page, ("", "")))
    text += "\n" + AFTERWARDS.get(page, "")
    with mock(missing):
        known = stand_ins(page)
        names = {"__name__": "page", **known}
        for name in free_names(text):
            names.setdefault(name, MagicMock(name=name))
        exec(compile(text, page, "exec"), names)


def in_child(page: str, blocks: list[str]) -> str:
    """The traceback of a page's code; empty: it ran."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        if (pid := os.fork()) == 0:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            text = ""
            try:
                run(page, blocks)
            except BaseException:  # noqa: BLE001 - SystemExit would run the parent's code
                text = traceback.format_exc()
            report.write_text(text, encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        return report.read_text(encoding="utf-8") if report.exists() else f"status {status}"


if __name__ == "__main__":
    pages = json.load(sys.stdin)
    json.dump({page: in_child(page, blocks) for page, blocks in pages.items()}, sys.stdout)
