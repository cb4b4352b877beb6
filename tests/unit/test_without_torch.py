"""Launchers that meet through a backend of torch need it; where it is missing, one line says so."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.fault_tolerance import launcher
from holdfast.options.plan import make_plan


def test_a_launcher_without_torch_ends_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and what can be done about it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    script = tmp_path / "train.py"
    script.touch()
    logs = tmp_path / "logs"

    arguments = launcher.parse_args(
        [
            "--nnodes=2",
            "--rdzv-backend=etcd",
            "--rdzv-endpoint=localhost:29500",
            f"--log-dir={logs}",
            str(script),
        ]
    )

    code = launcher.run(make_plan(arguments, {}))

    [line] = capsys.readouterr().err.splitlines()
    assert code == 1
    assert "--rdzv-backend etcd is a backend of torch" in line
    assert "Install torch" in line
    assert not logs.exists()


BROKEN = {
    "it has no such module": "raise ImportError('no module named _C')",
    "a library of it is missing": "raise OSError('libcudart.so.12: cannot open')",
    "anything else": "raise RuntimeError('built for\\nanother driver')",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN.keys())
def test_a_launcher_whose_torch_does_not_load_ends_with_one_line(
    tmp_path: Path, source: str
) -> None:
    """It says what torch said; a thread that ended without a word would be waited for for ever."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(source)
    script = tmp_path / "train.py"
    script.touch()
    options = [
        "--nnodes=2",
        "--rdzv-backend=etcd",
        "--rdzv-endpoint=localhost:29500",
        f"--log-dir={tmp_path / 'logs'}",
    ]
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", *options, str(script)]
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    [line] = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert line.startswith("ft_launcher: cannot continue: torch cannot be imported by")
    assert source.split("'")[1].replace("\\n", " ") in line
    assert "install torch there, or use --rdzv-backend c10d" in line
