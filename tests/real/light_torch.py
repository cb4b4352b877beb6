"""Imports torch in half of the processor time, for tests that compile nothing.

Garbage is not collected meanwhile, nor looked for among the objects of torch later. And torch is
kept from importing ``torch._dynamo`` with the first optimizer, DDP or FSDP of a process, only to
say that they are not to be compiled, which takes as long as its own import. Where the compiler is
there, as in a parked interpreter, it stays.

Scripts of tests begin with ``import light_torch``; :func:`.write_script` puts this file beside
them. Other scripts run as they are by ``python light_torch.py script words``.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

gc.disable()
import torch  # noqa: E402

gc.freeze()
gc.enable()


class _NoRules:
    """Of what the compiler would trace: each call is without effect."""

    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def _part(name: str) -> ModuleType:
    """A module of the compiler that torch wants by itself, such as its config."""
    try:
        return importlib.import_module(f"torch._dynamo.{name}")
    except ImportError:
        raise AttributeError(name) from None


def _not_compiled(function: Any = None, *_: object, **__: object) -> Any:
    return (lambda later: later) if function is None else function


if "torch._dynamo" not in sys.modules:
    _package: Any = ModuleType("torch._dynamo")
    _package.__path__ = [str(Path(torch.__file__).with_name("_dynamo"))]
    _package.__getattr__ = _part
    _package.disable = _not_compiled
    _package.graph_break = lambda *_, **__: None
    _package.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    _package.trace_rules = _NoRules()
    _package.eval_frame = SimpleNamespace(OptimizedModule=type("OptimizedModule", (), {}))
    sys.modules["torch._dynamo"] = torch._dynamo = _package

if __name__ == "__main__":
    sys.argv.pop(0)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
