"""The option table as an argparse parser: for ``--help``, and for programs that extend it."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from holdfast.core.exit_codes import IN_SHORT
from holdfast.core.job_secret import without_secret
from holdfast.errors import HoldfastError
from holdfast.fault_tolerance.command_line.arguments import Arguments
from holdfast.fault_tolerance.command_line.option import GROUPS, Option
from holdfast.fault_tolerance.command_line.options import FORMER, OPTIONS, default_of, spellings
from holdfast.fault_tolerance.config import resolve
from holdfast.fault_tolerance.values import LEVEL_NAMES, Kind, LogLevel

_COLUMNS_MAX = 100
_INDENT = 26

DESCRIPTION = """\
Start the ranks of one node, watch them, and start them again when they fail or hang.

Takes every option of torchrun; each can also be set in the environment as PET_<NAME>, in capitals
and with underscores. Dashes and underscores in names are the same. The first word that is no option
is the script; what follows it belongs to the script.
"""
_CODES = "\n".join(
    textwrap.indent(f"{code:<3} {text}", "  ").replace("\n  ", "\n      ")
    for code, text in IN_SHORT.items()
)
EPILOG = f"""\
exit codes:
{_CODES}

example:
  ft_launcher --nproc-per-node 2 --max-restarts 3 --ft-rank-heartbeat-timeout 300 train.py --lr 1e-4
"""


def make_parser(
    defaults: Mapping[str, Any], read: Callable[[Option, str, str], Any]
) -> argparse.ArgumentParser:
    """A parser with every option in every spelling.

    Args:
        defaults: Defaults by destination, where they differ from the table's.
        read: Reads an option's text, given where it stood; raises one of our errors.
    """
    parser = _Parser(
        prog="ft_launcher",
        usage="ft_launcher [options] script.py [arguments of the script]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    for title, sentence in GROUPS.items():
        group = parser.add_argument_group(title, sentence)
        if title == "Help":
            group.add_argument("-h", "--help", action="help", help="Print this and exit.")
        for option in OPTIONS:
            if option.group == title:
                _add(group, option, defaults, read)
    parser.add_argument(
        "training_script",
        metavar="script.py",
        help=argparse.SUPPRESS,
    )
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage of a hundred options above it."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows each option's first spelling only, within 100 columns."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, _COLUMNS_MAX)
        super().__init__(prog, max_help_position=_INDENT, width=columns - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        short = [each for each in action.option_strings if not each.startswith("--")]
        long = [each for each in action.option_strings if each.startswith("--")]
        names = ", ".join([*short, *long[:1]])
        return f"{names} {action.metavar}" if action.metavar else names


def _add(
    group: argparse._ArgumentGroup,
    option: Option,
    defaults: Mapping[str, Any],
    read: Callable[[Option, str, str], Any],
) -> None:
    former = [old for old, new in FORMER.items() if new == option.name]
    for names, text in (
        ([option.name, *option.twins], _text(option)),
        (former, argparse.SUPPRESS),
    ):
        if not names:
            continue
        flags = [spelling for name in names for spelling in spellings(name)]
        if option.short and names[0] == option.name:
            flags.insert(0, option.short)
        more: dict[str, Any] = {
            "dest": option.dest,
            "default": defaults.get(option.dest, option.default),
            "help": text,
        }
        if option.kind is None:
            group.add_argument(*flags, action="store_true", **more)
        else:
            group.add_argument(*flags, type=_type(option, read), metavar=option.kind.unit, **more)


def _type(option: Option, read: Callable[[Option, str, str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(option, option.name, text)
        except HoldfastError as error:
            raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None

    return convert


def _text(option: Option) -> str:
    text = f"{option.help}."
    default = default_of(option)
    if option.kind is not None and not (default in (None, "", []) and not option.why):
        text += f" Default: {show(default, option.kind)}{f' ({option.why})' if option.why else ''}."
    if option.later:
        text += " Accepted, has no effect yet."
    if option.idle:
        text += f" No effect here: {option.idle}."
    return text.replace("%", "%%")


def show(value: Any, kind: Kind | None = None) -> str:
    """A value as a person would write it on a command line."""
    if isinstance(kind, LogLevel):
        return LEVEL_NAMES.get(value, str(value))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ",".join(f"{name}:{show(limit)}" for name, limit in value.items()) or "none"
    if isinstance(value, list):
        return ",".join(item.replace(",", ",,") for item in value) or "none"
    return without_secret(str(getattr(value, "name", value))) or "none"


def describe_config(args: Arguments) -> str:
    """What a command line comes to, one line for each option: value, and where it is from.

    Raises:
        ConfigError: The configuration file cannot be used.
    """
    resolved = resolve(args)
    lines = []
    for title in GROUPS:
        if title == "Help":
            continue
        lines.append(f"{title}:")
        for option in OPTIONS:
            if option.group != title:
                continue
            if option.field is not None:
                value = getattr(resolved.config, option.field)
                origin = resolved.origins[option.field]
            else:
                value = getattr(args, option.dest)
                origin = args.origins.get(option.dest, "default")
            lines.append(f"  {option.name:<45} {show(value, option.kind):<23} {origin}")
        lines.append("")
    warnings = [*args.warnings, *resolved.warnings]
    return "\n".join(lines + [f"warning: {warning}" for warning in warnings]).rstrip()
