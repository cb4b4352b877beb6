"""Read the command line of ``ft_launcher``: torchrun's, and more.

The options end at the first word that is none, the script, or at ``--``; all words after it are the
script's. Dashes and underscores in names are the same. torchrun's options may be abbreviated, and
only they count for the meaning of an abbreviation. Old spellings give a warning each.

:func:`parse_args` does without argparse, which would cost every start some milliseconds;
:func:`get_args_parser` makes an argparse parser of the same table, for help and for programs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.base.pure.switches import is_set
from holdfast.base.pure.wording import nearest
from holdfast.options.launch_options import TORCHRUNS
from holdfast.options.option import Arguments, Option, UsageError
from holdfast.options.options import BY_DEST, BY_LETTER, BY_NAME, FORMER, OPTIONS

if TYPE_CHECKING:
    import argparse

__all__ = ["Arguments", "UsageError", "get_args_parser", "parse_args", "torchrun_words"]

PROGRAM = "ft_launcher"
USAGE = f"{PROGRAM} [options] script.py [arguments of the script]"
_FORMER_VARIABLES = {
    "FAULT_TOL_CFG_PATH": BY_DEST["ft_cfg_path"],
    "FT_LAUNCHER_LOGLEVEL": BY_DEST["ft_log_level"],
}
_DEBUG_VARIABLE = "NVRX_LOG_DEBUG"


class _Given(NamedTuple):
    option: Option
    spelling: str
    text: str | None


def parse_args(
    args: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> Arguments:
    """Read a command line.

    ``--help`` and ``--help-all`` print help and exit.

    Args:
        args: The words after the program's name; ``None`` for this process's.
        environ: Where ``PET_<DEST>`` is looked up; ``None`` for this process's environment.

    Raises:
        UsageError: An unknown option, a value that its option does not take, no script.
        SystemExit: After help, with code 0.
    """
    argv = sys.argv[1:] if args is None else list(args)
    env = os.environ if environ is None else environ
    given, script, script_args, warnings = _walk(argv)
    result = Arguments(
        training_script=script, training_script_args=script_args, origins={}, warnings=warnings
    )
    _from_environment(env, result, {each.option.dest for each in given})
    for option, spelling, text in given:
        value = True if text is None else option.read(spelling, text)
        setattr(result, option.dest, value)
        result.origins[option.dest] = "command line"
    if result.shutdown_timeout is not None and "term_timeout" not in result.origins:
        result.term_timeout = float(result.shutdown_timeout)
        result.origins["term_timeout"] = f"{result.origins['shutdown_timeout']}, --shutdown-timeout"
    for name, option in _FORMER_VARIABLES.items():
        if result.origins.get(option.dest) == _variable(name):
            warnings.append(f"{name} is an old name, write {option.name}")
    warnings += _unread(env)
    asks_only = result.version or result.print_config or result.print_config_all
    if script is None and not asks_only and not result.print_completion:
        raise UsageError(f"no script to run; usage: {USAGE}")
    if result.no_python and result.module and not result.run_path:
        raise UsageError("--no-python and --module exclude each other: a module needs python")
    return result


def torchrun_words(argv: Sequence[str]) -> list[str]:
    """The same command line for torchrun, without the options that it does not know.

    Raises:
        UsageError: See :func:`parse_args`.
    """
    given, script, script_args, _ = _walk(argv)
    words = [
        option.name if text is None else f"{option.name}={text}"
        for option, _, text in given
        if option.name in TORCHRUNS
    ]
    if script is None:
        return words
    is_divided = script.startswith("-") or script_args[:1] == ["--"]
    return [*words, *(["--"] if is_divided else []), script, *script_args]


def get_args_parser() -> argparse.ArgumentParser:
    """An argparse parser with all options, as torchrun has; ``PET_`` variables are its defaults.

    :func:`parse_args` is faster and more helpful; use this to print help or to add options.

    Raises:
        UsageError: A ``PET_`` variable holds a value that its option does not take.
    """
    from holdfast.options.help import make_parser  # noqa: PLC0415 - imports argparse

    defaults = Arguments(origins={}, warnings=[])
    _from_environment(os.environ, defaults, set())
    return make_parser(vars(defaults))


# ------------------------------------------------------------------ words
def _walk(argv: Sequence[str]) -> tuple[list[_Given], str | None, list[str], list[str]]:
    """Options as given, the script, its arguments, warnings."""
    given: list[_Given] = []
    warnings: dict[str, None] = {}  # in order, each once
    at, is_divided = 0, False
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            is_divided = True
            break
        if not word.startswith("-") or word == "-":
            at -= 1
            break
        name = _full_name(word)
        if name in ("-h", "--help", "--help-all"):
            _print_help(shows_all=name == "--help-all")
        option, spelling, text = _option(word, name, warnings)
        if option.kind is None:
            if text is not None:
                raise UsageError(f"{spelling} is a switch and takes no value, got {text!r}")
        elif text is None:
            text = argv[at] if at < len(argv) else None
            if text is None or _looks_like_an_option(text):
                hint = f"; for one that starts with a dash write {spelling}={text}" if text else ""
                raise UsageError(f"{spelling} needs a value: it takes {option.kind.accepts}{hint}")
            at += 1
        given.append(_Given(option, spelling, text))
    script, script_args = (argv[at] if at < len(argv) else None), list(argv[at + 1 :])
    if script_args[:1] == ["--"] and not is_divided:  # argparse, torchrun's, takes the first one
        del script_args[0]
    return given, script, script_args, list(warnings)


def _full_name(word: str) -> str:
    """The name in a word, with dashes only, and no abbreviation where it is one of torchrun's."""
    name = word.partition("=")[0].replace("_", "-")
    if not name.startswith("--") or name in BY_NAME or name in FORMER or name == "--help-all":
        return name
    meant = [known for known in TORCHRUNS if known.startswith(name)]
    if len(meant) > 1 and name not in meant:
        raise UsageError(f"{name} is ambiguous: it could be {', '.join(meant)}")
    return meant[0] if meant else name


def _option(word: str, name: str, warnings: dict[str, None]) -> tuple[Option, str, str | None]:
    """Which option a word names, as spelled, with the value in the same word if there is one."""
    if not word.startswith("--"):
        option = BY_LETTER.get(word[:2])
        if option is None or (option.kind is None and len(word) > 2):
            raise UsageError(f"unknown option {word}")
        return option, word[:2], word[2:].removeprefix("=") if len(word) > 2 else None
    spelling, equals, text = word.partition("=")
    if name in FORMER:
        warnings[f"{spelling} is an old spelling, write {FORMER[name]}"] = None
        name = FORMER[name]
    option = BY_NAME.get(name)
    if option is None:
        raise UsageError(f"unknown option {spelling}{_suggestion(name)}")
    return option, spelling, text if equals else None


def _suggestion(name: str) -> str:
    likely = next((known for known in BY_NAME if known.startswith(name)), None)
    likely = likely or nearest(name, BY_NAME)
    return f"; did you mean {likely}?" if likely else ""


def _looks_like_an_option(text: str) -> bool:
    """Starts with a dash and is no number: argparse's rule."""
    if not text.startswith("-") or text == "-":
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


# ------------------------------------------------------------------ environment
def _from_environment(env: Mapping[str, str], result: Arguments, given: Collection[str]) -> None:
    """All options as they are as long as the command line says nothing.

    Variables of options that are ``given`` are not looked at: a bad value there does no harm.
    """
    for option in OPTIONS:
        value = option.default
        setattr(result, option.dest, list(value) if isinstance(value, list) else value)
        name = next((name for name in option.env if name in env), None)
        if name is not None and option.dest not in given:
            _set(result, option, name, env[name])
    for name, option in _FORMER_VARIABLES.items():
        if env.get(name) and option.dest not in (*result.origins, *given):
            _set(result, option, name, env[name])
    if is_set(env, _DEBUG_VARIABLE) and "ft_log_level" not in given:
        result.ft_log_level = "debug"
        result.origins["ft_log_level"] = _variable(_DEBUG_VARIABLE)


def _unread(env: Mapping[str, str]) -> list[str]:
    """Variables that look like those of options, and are none's."""
    names = [name for name in env if name.startswith("PET_")]
    if not names:
        return []
    known = {name for option in OPTIONS for name in option.env}
    lines = []
    for name in sorted({*names} - known):
        likely = nearest(name, known)
        meant = f"; did you mean {likely}?" if likely else ""
        lines.append(f"{name}: no option reads this variable{meant}")
    return lines


def _set(result: Arguments, option: Option, name: str, text: str) -> None:
    if option.kind is not None:
        value = option.read(name, text)
    else:
        try:
            value = bool(int(text))  # torchrun's rule
        except ValueError:
            raise UsageError(f"{name}: {text!r} cannot be used; it takes 0 or 1") from None
    setattr(result, option.dest, value)
    result.origins[option.dest] = _variable(name)


def _variable(name: str) -> str:
    return f"environment, {name}"


def _print_help(*, shows_all: bool) -> None:
    from holdfast.options.help import make_parser  # noqa: PLC0415 - imports argparse

    make_parser({}, shows_all=shows_all).print_help()
    raise SystemExit(0)
