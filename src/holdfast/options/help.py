"""The option table as text: ``--help``, ``--print-config``, and an argparse parser to extend."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from holdfast.fault_tolerance.config import resolve
from holdfast.job.pure.exit_codes import IN_SHORT
from holdfast.job.pure.job_secret import without_secret
from holdfast.options.option import GROUPS, Arguments, Option, UsageError
from holdfast.options.options import COMMON, FORMER, OPTIONS, default_of, spellings
from holdfast.options.values import LEVEL_NAMES, NOT_YET, LogLevel, ValueKind
from holdfast.options.variables import IDLE_VARIABLES, VARIABLES

_COLUMNS_MAX = 100
_DEFAULT = "default"
"""Origin of a value that nothing has set."""
_INDENT = 26
_UNITS = {"SECONDS": " s", "MIB": " MiB", "MEGABYTES": " MB"}
"""Of defaults, by the unit of the value; other units are in the name of the value."""

DESCRIPTION = """\
Start the ranks of one node, watch them, and start them again when they fail or hang.

Takes every option of torchrun; each can also be set in the environment as PET_<NAME>, in capitals
and with underscores. Dashes and underscores in names are the same. The first word that is not an
option is the script; all words after it are arguments of the script.
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


def make_parser(defaults: Mapping[str, Any], *, shows_all: bool = False) -> argparse.ArgumentParser:
    """A parser with every option in every spelling.

    ``defaults`` by destination, where they differ from the table's. ``shows_all``: its help shows
    all options, not only those that most jobs need.
    """
    shown = [option for option in OPTIONS if shows_all or _is_common(option)]
    parser = _OptionParser(
        prog="ft_launcher",
        usage="ft_launcher [options] script.py [arguments of the script]",
        description=DESCRIPTION,
        epilog=(_variables() if shows_all else _MORE) + EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    for title, sentence in GROUPS.items():
        is_shown = title == "Help" or any(option.group == title for option in shown)
        group = parser.add_argument_group(title, sentence) if is_shown else parser
        if title == "Help":
            group.add_argument("-h", "--help", action="help", help="Print this help and exit.")
            group.add_argument(
                "--help-all",
                action=_HelpAll,
                nargs=0,
                default=argparse.SUPPRESS,
                help=f"Print the help of all {len(OPTIONS)} options and exit.",
            )
        for option in OPTIONS:
            if option.group == title:
                _add(group, option, defaults, is_shown=option in shown)
    parser.add_argument("training_script", metavar="script.py", help=argparse.SUPPRESS)
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _is_common(option: Option) -> bool:
    return option.name in COMMON or option.group == "Help"


_HIDDEN = sum(not _is_common(option) for option in OPTIONS)
_MORE = f"""\
--help-all has the other {_HIDDEN} options (all of torchrun's, restarts, timeouts, health checks,
output, those without effect here), and all environment variables.

"""


def _variables() -> str:
    """Environment variables and their effect, by where they count."""
    lines = []
    for title, rows in {**VARIABLES, "without effect": IDLE_VARIABLES}.items():
        lines.append(f"environment, {title}:")
        for names, effect in rows.items():
            lines += textwrap.wrap(names, 96, initial_indent="  ", subsequent_indent="  ")
            lines += textwrap.wrap(effect, 92, initial_indent="      ", subsequent_indent="      ")
        lines.append("")
    return "\n".join([*lines, ""])


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        make_parser({}, shows_all=True).print_help()
        parser.exit()


class _OptionParser(argparse.ArgumentParser):
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
    group: argparse._ActionsContainer,
    option: Option,
    defaults: Mapping[str, Any],
    *,
    is_shown: bool,
) -> None:
    former = [old for old, new in FORMER.items() if new == option.name]
    for names, text in (
        ([option.name, *option.twins], _text(option) if is_shown else argparse.SUPPRESS),
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
            group.add_argument(*flags, type=_type(option), metavar=option.kind.unit, **more)


def _type(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return option.read(option.name, text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.detail) from None

    return convert


def _text(option: Option) -> str:
    text = f"{option.help}."
    if option.group != "Help":
        text += f" Default: {_default(option)}{f' ({option.why})' if option.why else ''}."
    if option.idle:
        text += (
            " No effect in this release."
            if option.idle == NOT_YET
            else f" No effect here: {option.idle}."
        )
    return text.replace("%", "%%")


def _default(option: Option) -> str:
    """With its unit: ``15 s``; ``none`` for an option that has none, ``off`` for a switch."""
    if option.kind is None:
        return "off"
    default = default_of(option)
    if default is None:
        return "none"
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    unit = _UNITS.get(option.kind.unit, "") if is_number else ""
    return show(default, option.kind) + unit


def show(value: Any, kind: ValueKind | None = None) -> str:
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


def describe_config(args: Arguments, *, shows_all: bool = True) -> str:
    """The settings of a command line, one line for each option: value, and where it is from.

    ``shows_all``: options that have their default, too; otherwise only those that are set
    somewhere, each with its default beside its value.

    Raises:
        ConfigError: The configuration file cannot be used.
    """
    resolved = resolve(args)
    lines = []
    for title in GROUPS:
        rows = []
        for option in OPTIONS:
            if option.group != title or title == "Help":
                continue
            if option.field is not None:
                value = getattr(resolved.config, option.field)
                origin = resolved.origins[option.field]
            else:
                value = getattr(args, option.dest)
                origin = args.origins.get(option.dest, _DEFAULT)
            shown = show(value, option.kind)
            if shows_all:
                rows.append(f"  {option.name:<45} {shown:<23} {origin}")
            elif origin != _DEFAULT:
                default = show(default_of(option), option.kind)
                differs = f"instead of {default}" if shown != default else "as by default"
                effect = "" if option.has_effect else "; without effect"
                rows.append(f"  {option.name:<35} {shown:<23} {differs:<23} {origin}{effect}")
        if rows:
            lines += [f"{title}:", *rows, ""]
    if not shows_all:
        lines.append("All other options have their defaults: --print-config-all prints them.")
    warnings = [*args.warnings, *resolved.warnings]
    return "\n".join(lines + [f"warning: {warning}" for warning in warnings]).rstrip()
