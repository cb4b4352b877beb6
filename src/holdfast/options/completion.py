"""The script that completes the options of ``ft_launcher`` in a shell: ``--print-completion``.

It is made by `shtab <https://docs.iterative.ai/shtab>`_, as torchrun's is, and which need not be
installed where jobs run.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from holdfast.errors import ConfigError
from holdfast.options.help import make_parser
from holdfast.options.options import BY_DEST
from holdfast.options.values import Choice


def script_for(shell: str) -> str:
    """For ``bash``, ``zsh`` or ``tcsh``.

    Raises:
        ConfigError: shtab is not installed.
    """
    shtab = _shtab()
    parser = make_parser({}, shows_all=True)
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to them
        option = BY_DEST.get(action.dest)
        if option is not None and isinstance(option.kind, Choice):
            action.choices = option.kind.words
        names = action.option_strings
        long = [name for name in names if name.startswith("--")][:1]  # the others mean the same
        action.option_strings = [*[name for name in names if not name.startswith("--")], *long]
        if not names:
            action.help, action.complete = "", shtab.FILE  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell=shell)
    return text


def _shtab() -> ModuleType:
    try:
        return importlib.import_module("shtab")
    except ImportError:
        raise ConfigError(
            "--print-completion needs the package shtab, which is not installed here: "
            "pip install shtab"
        ) from None
