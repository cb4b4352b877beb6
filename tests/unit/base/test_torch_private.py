"""One module knows the private names of torch, and goes on without each of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from holdfast.base import torch_private  # noqa: E402
from holdfast.inplace.torch_edge import hosted_stores  # noqa: E402
from holdfast.inplace.torch_edge.abort_distributed import abort_native_groups  # noqa: E402

ROOT = Path(__file__).parents[3]
MODULE = ROOT / "src/holdfast/base/torch_private.py"
SOURCES = sorted({*(ROOT / "src").rglob("*.py"), *(ROOT / "compat/src").rglob("*.py")} - {MODULE})
NOT_TORCHS = {
    "_asdict",  # named tuples
    "_data",  # os.environ
    "_is_owned",  # threading.RLock
    "_inheriting",  # multiprocessing
    *("_scheduled_tasks", "_all_tasks", "_fut_waiter", "_children"),  # asyncio
    "_save_checkpoint",  # transformers
    "_ub_communicators",  # Transformer Engine
    *("_ckpt_path", "_loaded_checkpoint", "_checkpoint_connector", "_loaded_from_state_dict"),
    *("_logger_connector", "_current_fx", "_first_loop_iter", "_results", "_update_count"),
    *("_restarting", "_resuming_from_checkpoint", "_restart_stage", "_should_reload_train_dl"),
    *("_combined_loader", "_combined_loader_states_to_load", "_state_dicts"),  # Lightning, these
}
LISTED = {"src/holdfast/standby/pure/libraries.py": {"torch._dynamo"}}
"""Written down elsewhere, by the side that must not import torch."""
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def parts_of(node: ast.expr) -> list[str]:
    """``a.b._c`` as its names, the first one empty where it is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def defined_in(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(module=module, names=names) if not of_torch(module):
                found.update(alias.name for alias in names)
    return found


def of_torch(module: str | None) -> bool:
    """What is imported from our own module is torch's as well."""
    parts = (module or "").split(".")
    return parts[0] == "torch" or parts[-1] == MODULE.stem


def private_uses(tree: ast.AST, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of what looks like a private name of torch.

    That is: what is imported or reached from torch; an attribute that no file of ours defines; and
    in a file that imports torch one that this file does not define.
    """
    aliases: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias for alias in node.names if of_torch(alias.name)]
            aliases.update(alias.asname or "torch" for alias in found)
            others.update(alias.asname or alias.name for alias in node.names if alias not in found)
            yield from ((node.lineno, a.name) for a in found if any_private(a.name))
        elif isinstance(node, ast.ImportFrom):
            if not of_torch(node.module):
                continue
            aliases.update(alias.asname or alias.name for alias in node.names)
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, name) for name in names if any_private(name))
    known = (defined_in(tree) if aliases else ours) | NOT_TORCHS
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                base, *rest = parts_of(node)
                from_torch = base in aliases and is_private(name)
                of_self = base in ("self", "cls") and len(rest) == 1
                is_unknown = is_private(name) and name not in known
                if from_torch or (is_unknown and not of_self and base not in others):
                    yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id=how), args=[_, ast.Constant(value=str(name)), *_]) if (
                how in ("getattr", "hasattr", "setattr", "delattr")
            ):
                if is_private(name) and name not in known:
                    yield node.lineno, name
            case ast.Constant(value=str(text)) if text.startswith("torch.") and " " not in text:
                if any_private(text):
                    yield node.lineno, text


def any_private(path: str) -> bool:
    return any(is_private(part) for part in path.replace(":", ".").split("."))


def ours() -> set[str]:
    return set().union(*(defined_in(ast.parse(path.read_text())) for path in SOURCES))


def test_no_other_file_uses_a_private_name_of_torch() -> None:
    """What changes between versions of torch is then mended in one place."""
    known = ours()
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        for line, text in private_uses(ast.parse(path.read_text()), known)
        if text not in LISTED.get(str(path.relative_to(ROOT)), ())
    ]
    assert found == [], "private names of torch belong into holdfast.base.torch_private"


@pytest.mark.parametrize(
    "source",
    [
        "from torch._C._distributed_c10d import Store",
        "from torch.distributed.distributed_c10d import _world",
        "import torch._dynamo",
        "import torch\ntorch.cuda._sleep(1)",
        "import torch.distributed as dist\ndist.distributed_c10d._world.pg_map.clear()",
        "from torch.distributed import distributed_c10d as c10d\nc10d._update_default_pg(None)",
        "def f(work):\n    return work._get_op_type()",
        "from torch.distributed import Store\ndef f(handler):\n    return handler._store",
        "getattr(module, '_rendezvous_handlers', None)",
        "import sys\nsys.modules.get('torch.distributed.checkpoint._async_process_executor')",
    ],
)
def test_the_search_finds(source: str) -> None:
    """Else the test above could not fail."""
    assert list(private_uses(ast.parse(source), {"_store"}))


def test_what_is_ours_or_public_is_not_found() -> None:
    """Else nobody could write a file that imports torch."""
    source = """
import os, torch.distributed as dist
class Ours:
    def __init__(self, other):
        self._store = dist.HashStore()
        self._lock = other._store
        os._exit(0)
        getattr(dist, "__file__")
"""
    assert not list(private_uses(ast.parse(source), set()))


def test_the_module_lists_what_it_uses() -> None:
    """With the versions that it was seen in, and what is done without it."""
    listed = {
        part
        for name in (*torch_private.NAMES, *torch_private.OF_OBJECTS)
        for part in name.path.replace(":", ".").split(".")
    }
    tree = ast.parse(MODULE.read_text())
    known = defined_in(tree)
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in known:
                used.add(name)
            case ast.Attribute(value=ast.Name(id="world"), attr=name):
                used.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name):
                used.add(name)
            case ast.Call(func=ast.Name(id="_native"), args=[ast.Constant(value=str(name))]):
                used.add(name)
    assert {"comms", "_dump_fr_trace", "_sleep", "_encode"} <= used | listed
    assert used <= listed


@pytest.mark.parametrize("name", torch_private.NAMES, ids=lambda name: name.path)
def test_the_torch_here_has_what_the_list_says(name: torch_private.PrivateName) -> None:
    """A name that it should have, and has not, is a reason to look at what is done without it."""
    if name.needs == "cuda" and torch.version.cuda is None:
        pytest.skip("this torch is built without CUDA")
    minor = f"{VERSION[0]}.{VERSION[1]}"
    is_there = has(name.path)
    if number(name.first) <= VERSION:
        assert is_there, f"torch {torch.__version__} has no {name.path}: {name.without}"
    elif minor in torch_private.TRIED:
        assert not is_there


def has(path: str) -> bool:
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in attributes.split("."):
            found = getattr(found, name)
    except (AttributeError, ImportError):
        return False
    return True


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# ------------------------------------------------------------ without


class Without:
    """Another object, less some of its attributes."""

    def __init__(self, other: Any, *names: str) -> None:
        self.__dict__.update(_other=other, _names=names)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._other, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._other, name, value)


def of_world() -> list[str]:
    paths = [name.path.partition("_world.")[2] for name in torch_private.NAMES]
    return [path for path in paths if path]


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    """Each ``init_process_group`` wraps it once more."""
    before = sys.excepthook
    yield
    sys.excepthook = before


def hide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From our module alone: torch itself needs what it has."""
    c10d, native = torch_private.c10d, torch_private._native
    if name in of_world():
        hidden = SimpleNamespace(
            __name__=c10d.__name__,
            _world=Without(c10d._world, name),
            _update_default_pg=c10d._update_default_pg,
        )
        monkeypatch.setattr(torch_private, "c10d", hidden)
        return
    monkeypatch.setattr(torch_private, "c10d", Without(c10d, name))

    def hiding(asked: str) -> Any:
        if asked == name:
            raise AttributeError(name)
        return native(asked)

    monkeypatch.setattr(torch_private, "_native", hiding)


@pytest.mark.parametrize(
    "name", [*of_world(), "_world", "_update_default_pg", "_unregister_all_process_groups"]
)
def test_groups_can_be_made_again_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same names as before, as on a rank that was started anew."""
    hide(monkeypatch, name)
    seen = []
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        more = dist.new_group()
        seen.append(more.group_name)
        assert abort_native_groups() == []
        del more
        torch_private.forget_groups()
        assert not dist.is_initialized()
    torch_private.forget_groups()
    assert seen[0] == seen[1]


def test_env_is_torchs_own_where_its_handlers_are_not_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, and nothing of torch is touched."""
    monkeypatch.setattr(hosted_stores, "environment_handlers", lambda: None)
    with hosted_stores.env_rendezvous_by(lambda: None):
        pass
    assert "MASTER_PORT" in caplog.text
