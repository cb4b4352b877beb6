"""Scripts of tests, in a folder of their own."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

WITHOUT_COMPILER = Path(__file__).with_name("without_compiler.py")


def write_script(path: Path, source: str) -> Path:
    """Write a script, and beside it the one module of tests that it may import."""
    path.write_text(textwrap.dedent(source))
    if f"import {WITHOUT_COMPILER.stem}" in source:
        shutil.copy(WITHOUT_COMPILER, path.parent)
    return path
