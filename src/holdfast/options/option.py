"""One option of ``ft_launcher``, titles of ``--help``, and a parsed command line. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.job.pure.job_secret import without_secret
from holdfast.options.values import Unacceptable, ValueKind

NODES, RESTARTS = "several nodes", "restarts"


class Option(NamedTuple):
    """One option.

    Attributes:
        name: Its spelling with dashes only.
        kind: Kind of its value; ``None``: it is a switch.
        default: Its value when not given.
        help: One sentence without full stop.
        why: The reason for the default.
        group: Title of its group in help.
        short: Its one-letter spelling.
        env: Variables of the environment that it is also read from; the first one set counts.
        field: The field of the configuration that it sets. Its value stays text until then.
        twins: Further spellings, as good as its name.
        idle: Why it has no effect here; empty: it has one. ``NOT_YET``: in this release.
        needs: ``NODES``, ``RESTARTS``: it has an effect only in a job that has them.
    """

    name: str
    kind: ValueKind | None
    default: Any
    help: str
    why: str = ""
    group: str = ""
    short: str | None = None
    env: tuple[str, ...] = ()
    field: str | None = None
    twins: tuple[str, ...] = ()
    idle: str = ""
    needs: str = ""

    @property
    def dest(self) -> str:
        """Attribute of the parsed command line; without a field, by argparse's rule."""
        return f"ft_{self.field}" if self.field else self.name[2:].replace("-", "_")

    @property
    def has_effect(self) -> bool:
        """It is not idle."""
        return not self.idle

    def read(self, source: str, text: str) -> Any:
        """The value that text stands for; ``source`` is how the user wrote the option.

        Raises:
            UsageError: It is not accepted.
        """
        assert self.kind is not None
        try:
            value = self.kind.parse(text)
        except Unacceptable as error:
            raise self.refusal(source, text, error) from None
        return text if self.field is not None else value

    def refusal(self, source: str, text: str, error: Unacceptable) -> UsageError:
        """The error for text that the option doesn't take."""
        assert self.kind is not None
        because = f" ({error})" if str(error) else ""
        detail = f"{without_secret(text)!r} cannot be used{because}; it takes {self.kind.accepts}"
        return UsageError(f"{source}: {detail}", detail)


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


def pet(name: str) -> str:
    """The variable in which torchrun looks for an option of this name."""
    return f"PET_{name[2:].replace('-', '_').upper()}"


class UsageError(HoldfastError):
    """A command line that cannot be used; one line that names the option and its values.

    Attributes:
        detail: The same without the option, for a parser that names it.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail or text


class Arguments(SimpleNamespace):
    """A command line, read: torchrun's attributes, and ``ft_`` ones.

    Options that set a field of the configuration hold the text that was given, or ``None``, for
    :meth:`.FaultToleranceConfig.from_args` to read.

    Attributes:
        training_script: The script, module or program; ``None`` only with ``print_config``,
            ``print_config_all``, ``print_completion`` or ``version``.
        training_script_args: The words after it.
        origins: For each option given, by attribute, where.
        warnings: For the user, each once.
    """

    training_script: str | None
    training_script_args: list[str]
    origins: dict[str, str]
    warnings: list[str]
