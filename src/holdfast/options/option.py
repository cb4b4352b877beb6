"""What one option of ``ft_launcher`` is, and under which titles ``--help`` shows them. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.options.values import Kind


class Option(NamedTuple):
    """One option.

    Attributes:
        name: Its spelling with dashes only.
        dest: Attribute of the parsed command line.
        kind: What it takes; ``None``: it is a switch and takes nothing.
        default: Its value when not given.
        help: One sentence without full stop.
        why: The reason for the default.
        group: Title of its group in help.
        short: Its one-letter spelling.
        env: Variables of the environment that it is also read from; the first one set counts.
        field: The field of the configuration that it sets. Its value stays text until then.
        later: Accepted, without effect in this release.
        twins: Further spellings, as good as its name.
        idle: Why it never has an effect here; empty: it has one.
    """

    name: str
    dest: str
    kind: Kind | None
    default: Any
    help: str
    why: str = ""
    group: str = ""
    short: str | None = None
    env: tuple[str, ...] = ()
    field: str | None = None
    later: bool = False
    twins: tuple[str, ...] = ()
    idle: str = ""

    @property
    def has_effect(self) -> bool:
        """Something acts on it in this release."""
        return not (self.later or self.idle)

    def read(self, text: str) -> Any:
        """The value that text stands for.

        Raises:
            Unacceptable: None.
        """
        assert self.kind is not None
        value = self.kind.parse(text)
        return text if self.field is not None else value


GROUPS = {
    "Job size": "How many ranks, and on how many nodes.",
    "What to run": "The script and how each rank starts it.",
    "Membership": "How the launchers of several nodes find each other and order their ranks.",
    "Restarting": "What happens after a rank has failed or hung.",
    "Stopping": "How ranks are asked to end, and how long they may take.",
    "Detecting hangs": "When a rank that is still alive counts as hung; ranks report through "
    "RankMonitorClient.",
    "Output": "Where output of ranks and launcher goes.",
    "Health": "Checks of a node before ranks start and while they run.",
    "Metrics and hooks": "Metrics of the job, and commands that its incidents start.",
    "Explaining failures": "Services outside that explain failures from logs.",
    "Compatibility": "Accepted because existing scripts use them; they have no effect.",
    "Help": "About this command line.",
}
"""Titles in the order of help, each with one sentence."""


def under(group: str, *options: Option) -> list[Option]:
    """These options, in a group of help."""
    return [option._replace(group=group) for option in options]


def dest_of(name: str) -> str:
    """Where the value of an option of this name goes, by argparse's rule."""
    return name.removeprefix("--").replace("-", "_")


def pet(name: str) -> str:
    """The variable in which torchrun looks for an option of this name."""
    return f"PET_{dest_of(name).upper()}"
