"""The program ``ft_launcher``: its first lines, after which a signal ends it as documented.

    interpreter starts ─► here ─► command line is read ─► loop of the launcher ─► the end
    killed by the signal    1, or 130 after Ctrl-C          ranks are ended: 1      the job's code

Nothing runs yet while the command line is read, so the answer to a signal is the end, at once. From
there on signals are held (``_early_signals.py``) until the launcher's loop takes them, and again
when that is over. Nothing can be done about a signal that comes while the interpreter starts.
"""

from holdfast._early_signals import end_on_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """The program; see :func:`holdfast.fault_tolerance.launcher.command`."""
    end_on_signals()
    from holdfast.fault_tolerance.launcher import command as launch  # noqa: PLC0415 - slow

    launch()


if __name__ == "__main__":
    command()
