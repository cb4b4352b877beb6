"""The script that completes the options of ``ft_launcher`` in a shell: ``--print-completion``.

It is made by `shtab <https://github.com/tqdm/shtab>`_, as torchrun's is, which need not be
installed where jobs run.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any

from holdfast.errors import ConfigError
from holdfast.options.options import OPTIONS
from holdfast.options.values import Choice


def script_for(shell: str) -> str:
    """For one of the shells that ``--print-completion`` takes.

    Raises:
        ConfigError: shtab is not installed, or too old for this shell.
    """
    shtab = _shtab()
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise ConfigError(
            f"--print-completion {shell}: shtab {shtab.__version__} here knows only {known}: "
            "pip install --upgrade shtab"
        )
    text: str = shtab.complete(_parser(shtab.FILE), shell=shell)
    return text


def _parser(files: object) -> argparse.ArgumentParser:
    """Each option in one spelling, with the words that it takes; the script is a file."""
    parser = argparse.ArgumentParser("ft_launcher")
    parser.add_argument("--help-all", action="store_true", help="Print the help of all options")
    for option in OPTIONS:
        names = [option.short, option.name] if option.short else [option.name]
        more: dict[str, Any] = {"help": option.help.replace("%", "%%")}
        if option.kind is None:
            more["action"] = "store_true"
        elif isinstance(option.kind, Choice):
            more["choices"] = option.kind.words
        parser.add_argument(*names, **more)
    script = parser.add_argument("script", nargs="*", help="The script, and its arguments")
    script.complete = files  # type: ignore[attr-defined]
    return parser


def _shtab() -> ModuleType:
    try:
        return importlib.import_module("shtab")
    except ImportError:
        raise ConfigError(
            "--print-completion needs the package shtab, which is not installed here: "
            "pip install shtab"
        ) from None
