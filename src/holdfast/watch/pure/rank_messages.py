"""Messages of a rank to its monitor and to the launcher of its node, and the answers.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``). ::

    rank ──► monitor    Hello                        ◄── Welcome, or Error
                        Armed Timeouts LeaveMonitor    ◄── Ok, or Error

    helper ──► monitor  Helper                       ◄── SayWhere, at an incident
                        Alive, then Operations

    rank ──► launcher   Control                      ◄── Ok, or Error
                        Uncaught                     ◄── Ok, or Error
                        then ExitsNow, on the same connection; not answered

The helper is a thread of the rank. A node guard calls the launcher's endpoint, too
(``inplace/pure/job_calls.py``). Names of files and sections may hold bytes that are not UTF-8.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Count, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import Operations
from holdfast.page.pure.clocks import Learned, Timeouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Rank: TypeAlias = int
else:
    Rank = Whole(0, (1 << 31) - 1)


# ---------------------------------------------------------------- a rank to its monitor
class Hello(Value):
    """Serve me: the first message of a connection.

    Attributes:
        pid: Its process, for a monitor that cannot see it (another pid namespace).
        clock_s: CLOCK_MONOTONIC of the rank; None: not said.
        resume: It was served before, by this monitor or by one that this one replaces.
        by_steps: It will report optimizer steps and nothing else, and was not asked to: it may be a
            child of the rank.
    """

    rank: Rank
    pid: Count
    clock_s: float | None = None
    resume: bool = False
    by_steps: bool = False


class Armed(Value):
    """The page is filled in: watch me."""


class LeaveMonitor(Value):
    """The rank leaves its monitor. Its process is expected to end."""


class Helper(Value):
    """The first message of a connection of the rank's helper thread; see ``look_helper.py``."""

    rank: Rank
    pid: Count


class Alive(Value):
    """The first answer to ``SayWhere``: a thread of the rank can run."""


class Counted(Value):
    """``total``: the sum of all groups' sequence numbers, begun and ended; -1: not known."""

    total: int = -1


class Dumped(Value):
    """The answer to ``Dump``: all stacks have been written."""


# ---------------------------------------------------------------- answers to a rank
class SayWhere(Value):
    """To the helper thread: say where the rank is."""


class Dump(Value):
    """To the helper thread: write all stacks where the signal for that would write them."""


class CountCollectives(Value):
    """To the helper thread: say how many collectives there were."""


class Welcome(Value):
    """The rank is served.

    Attributes:
        page: Its page; None: there is none, and the rank runs unwatched.
        dump: Where its stacks are written; None: nowhere.
        cycle: The cycle that it is a rank of.
        cfg: The configuration (``FaultToleranceConfig.to_wire``), with the limits in force.
        learned: Which of those were learned, in an earlier cycle.
        takes_helper: It serves the rank's helper thread.
    """

    page: Raw | None
    cfg: dict[str, object]
    dump: Raw | None = None
    cycle: Count = 0
    learned: Learned = Learned()
    takes_helper: bool = False


class Ok(Value):
    """It is done. ``raised``: limits that must be longer than asked for; they tripped before."""

    raised: Timeouts | None = None


class Error(Value):
    """It is not done. ``text``: why, for people."""

    text: Text


# ---------------------------------------------------------------- a rank to its launcher
class Control(Value):
    """The rank asks for a ``WorkloadAction``, by its name. ``description``: why, for people."""

    rank: Rank
    action: str
    description: Raw = ""


class Uncaught(Value):
    """An exception that nothing caught ends the rank's program: exit handlers run next.

    ``traceback``: as Python prints it. The answer is Ok if the launcher will see to the end.
    """

    traceback: Raw


class ExitsNow(Value):
    """Exit handlers have run; the process ends with exit code 1 as its next step."""


FromRank = Hello | Helper | Armed | Timeouts | LeaveMonitor | Alive | Operations | Dumped | Counted
ToRank = Welcome | Ok | Error | SayWhere | Dump | CountCollectives

FROM_RANK: Mapping[str, type[FromRank]] = family(FromRank)
TO_RANK: Mapping[str, type[ToRank]] = family(ToRank)
ToLauncher = Control | Uncaught | ExitsNow
