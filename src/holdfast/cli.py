"""The command ``holdfast``: tools around training jobs, one for each word that it knows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from holdfast import __version__
from holdfast.base.command_output import guarded
from holdfast.base.pure.wording import nearest

_USAGE = """\
usage: holdfast COMMAND ...

  doctor   check this host and a command line of ft_launcher, and say what will
           happen on each kind of fault, with times; starts nothing
  report   what failed in a run, why, and where its time went
  explain  the meaning of lines of the log, and what to do
  runs     list runs, the newest 20 by script
  prune    remove the folders of old runs
  top      show the ranks of a running job in a terminal, live
  view     the same on a page in a browser
  trace    write the timeline of a run for Perfetto
  rescue   write the newest snapshot of a running job to disk
  chaos    run a job under ft_launcher, inject faults from a seed, and measure
           how it recovers from each
  witness  have a vote in a job of several nodes, without ranks, so that another
           launcher may lead it when the one that leads has died

holdfast COMMAND --help says more; holdfast --version says which one this is.
"""
_COMMANDS = {
    **dict.fromkeys(("chaos", "doctor"), "holdfast.tools.{}.command"),
    **dict.fromkeys(("report", "trace"), "holdfast.tools.commands"),
    **dict.fromkeys(("prune", "runs"), "holdfast.tools.runs"),
    **dict.fromkeys(("top", "view"), "holdfast.tools.view.commands"),
    "explain": "holdfast.tools.explain",
    "rescue": "holdfast.tools.rescue",
    "witness": "holdfast.tools.witness",
}
"""The module of each; that of the one that is used is imported."""
_WRONG = 2


def main(args: Sequence[str] | None = None) -> int:
    """The command ``holdfast``; returns the exit code (2: it cannot be used this way).

    Args:
        args: Words after the program's name; None: this process's.
    """
    words = list(sys.argv[1:] if args is None else args)
    return guarded(" ".join(["holdfast", *words[:1]]), lambda: _run(words))


def _no_such_command(word: str) -> str:
    if close := nearest(word, _COMMANDS, 0.5):
        return f"unknown command {word!r}: did you mean {close}?"
    return f"unknown command {word!r}; it knows: {', '.join(sorted(_COMMANDS))}"


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0 if words else _WRONG
    if words[0] == "--version":
        sys.stdout.write(f"holdfast {__version__}\n")
        return 0
    if words[0] not in _COMMANDS:
        sys.stderr.write(f"holdfast: error: {_no_such_command(words[0])}\n")
        return _WRONG
    command, *rest = words
    run = import_module(_COMMANDS[command].format(command)).main
    code: int = run(rest) if command in ("chaos", "doctor") else run(command, rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
