"""Scripts of tests, in a folder of their own."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

LIGHT_TORCH = Path(__file__).with_name("light_torch.py")


def write_script(path: Path, source: str) -> Path:
    """Write a script, and beside it the one module of tests that it may import."""
    path.write_text(textwrap.dedent(source))
    if LIGHT_TORCH.stem in source:
        shutil.copy(LIGHT_TORCH, path.parent)
    return path
