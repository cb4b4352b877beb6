"""The first lines of a rank: they cost it nothing, whatever is installed beside it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.processes import start_hook
from holdfast.watch.rank.auto_start import StartHook

OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook(None, (), {})
"""
OLD_FINDER = """
import sys
class Old:  # of before Python 3.4: no find_spec
    def find_module(self, name, path=None):
        return None
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with a torch that has hooks of steps, and nothing else."""
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)
    return tmp_path


def run(code: str, env: dict[str, str], *options: str, is_rank: bool = True) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hook = StartHook(counts_steps=True, exception_grace_s=2.0)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *options, "-c", code],
        env=hook.added_to({**kept, **env}) if is_rank else {**kept, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("path", [None, "/some/where", ""])
def test_the_script_finds_the_environment_that_it_was_given(path: str | None) -> None:
    env = {} if path is None else {"PYTHONPATH": path}
    code = (
        "import os, sys; print((os.environ.get('PYTHONPATH'), os.environ.get('HOLDFAST_AUTO'), "
        "[p for p in sys.path if 'start_hook' in p], 'torch' in sys.modules))"
    )
    assert run(code, env) == str((path, None, [], False))


def test_a_sitecustomize_of_the_users_runs_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __file__")
    code = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)"
    assert run(code, {"PYTHONPATH": str(tmp_path)}) == "True"


@pytest.mark.parametrize("path", [None, "theirs"])
def test_a_python_that_is_older_than_holdfast_starts_plainly(
    tmp_path: Path, path: str | None
) -> None:
    """``PYTHON_EXEC`` may name one, whose libraries need their ``sitecustomize``."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = True")
    code = (
        "import sys; sys.hexversion = 0x03090000; import os, site; site.main(); "
        "print((hasattr(sys, 'theirs'), os.environ.get('PYTHONPATH'), "
        "'HOLDFAST_AUTO' in os.environ, '_holdfast_start' in sys.modules))"
    )
    env = {} if path is None else {"PYTHONPATH": str(tmp_path)}
    assert run(code, env, "-S") == str((path is not None, env.get("PYTHONPATH"), False, False))


def test_an_older_python_can_read_the_hook() -> None:
    """It knows no ``str | None`` and no ``list[str]`` where it evaluates annotations."""
    source = Path(start_hook.FOLDER, "sitecustomize.py").read_text()
    tree = ast.parse(source, feature_version=(3, 7))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    named = [arg.annotation for function in functions for arg in function.args.args]
    evaluated = {*named, *(function.returns for function in functions)} - {None}
    assert [
        ast.unparse(it) for it in evaluated if not isinstance(it, (ast.Constant, ast.Name))
    ] == []


def test_a_sitecustomize_that_fails_is_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.began = True; 1 / 0")
    code = "import sys; print(sys.began, 'sitecustomize' in sys.modules)"
    assert run(code, {"PYTHONPATH": str(tmp_path)}) == "True False"


def test_the_script_finds_the_modules_of_a_plain_start_and_the_first_lines() -> None:
    """No ``sitecustomize`` where the user has none."""
    code = "import sys; print(*sorted(sys.modules))"
    of_a_rank, of_a_plain_start = run(code, {}), run(code, {}, is_rank=False)
    assert set(of_a_rank.split()) ^ set(of_a_plain_start.split()) == {"_holdfast_start"}


def test_faults_at_the_start_come_only_with_the_folder_on_the_users_own_path(
    fake: Path, tmp_path: Path
) -> None:
    """The launcher puts the same folder there for the first lines, and takes it off again."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = list(sys.meta_path)")
    code = (
        "import os, sys; finders = [type(it).__name__ for it in sys.theirs]; "
        "import torch.optim.optimizer as m; "
        "print(os.environ['PYTHONPATH'], finders[0], len(m.hooks))"
    )
    chaos = {"HOLDFAST_CHAOS": str(tmp_path), "HOLDFAST_INJECT": "sleep@0:7", "RANK": "0"}
    path = os.pathsep.join([f"{start_hook.FOLDER}/", str(fake)])
    assert run(code, {**chaos, "PYTHONPATH": path}) == f"{path} _PlanFinder 2"
    assert run(code, {**chaos, "PYTHONPATH": str(fake)}) == f"{fake} _AfterImport 1"


def test_each_step_is_told_and_the_module_looks_as_it_would_without_us(fake: Path) -> None:
    code = (
        "import torch.optim.optimizer as m; "
        "print(len(m.hooks), type(m.__loader__).__name__, m.__spec__.loader is m.__loader__)"
    )
    assert run(code, {"PYTHONPATH": str(fake)}) == "1 SourceFileLoader True"


def test_steps_that_a_checkpoint_makes_before_it_is_loaded_are_not_the_first(fake: Path) -> None:
    """DCP makes one for each optimizer; the training has not begun, and loading takes minutes."""
    (fake / "torch" / "distributed" / "checkpoint").mkdir(parents=True)
    (fake / "torch" / "distributed" / "checkpoint" / "state_dict.py").write_text(
        "from torch.optim.optimizer import step\ndef get_state_dict():\n    step()\n"
    )
    code = (
        "import sys; from torch.optim.optimizer import step; "
        "from torch.distributed.checkpoint.state_dict import get_state_dict; "
        "counts = lambda: 'holdfast.watch.rank.auto_heartbeat' in sys.modules; "
        "[get_state_dict() for _ in range(3)]; step(); step(); before = counts(); step(); "
        "print(before, counts())"
    )
    assert run(code, {"PYTHONPATH": str(fake)}) == "False True"


@pytest.mark.parametrize(
    "broken",
    ["raise RuntimeError('half installed')", "def begin():\n    raise OSError('no page')"],
    ids=["import", "begin"],
)
def test_a_step_never_fails_for_us(fake: Path, broken: str) -> None:
    code = (
        "import sys, types, importlib.abc, importlib.util\n"
        "name = 'holdfast.watch.rank.auto_heartbeat'\n"
        f"source = {broken!r}\n"
        "class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, wanted, path=None, target=None):\n"
        "        if wanted == name:\n"
        "            return importlib.util.spec_from_loader(name, self)\n"
        "    def exec_module(self, module):\n"
        "        exec(source, vars(module))\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from torch.optim.optimizer import step\n"
        "for _ in range(9): step()\n"
        "print('trained')"
    )
    assert run(code, {"PYTHONPATH": str(fake)}) == "trained"


def test_a_finder_of_an_old_kind_does_not_keep_torch_from_being_imported(fake: Path) -> None:
    code = f"{OLD_FINDER}\nsys.meta_path.append(Old())\nsys.meta_path.insert(0, Old())\n"
    code += "import torch.optim.optimizer as m; print(len(m.hooks))"
    assert run(code, {"PYTHONPATH": str(fake)}) == "1"
