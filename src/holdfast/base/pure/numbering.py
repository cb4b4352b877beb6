"""Types for numbers that look alike, so that one cannot be passed for another. Pure.

They are ``int`` when the program runs; ``mypy`` tells them apart. Used where two of them meet: the
place and the end of a rank, the pages of a cycle. :doc:`docs/glossary.md` explains each.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NewType

    GlobalRank = NewType("GlobalRank", int)
    LocalRank = NewType("LocalRank", int)
    GroupRank = NewType("GroupRank", int)
    Cycle = NewType("Cycle", int)
    Pid = NewType("Pid", int)
else:  # ``typing`` takes milliseconds to import, and the rank monitor does without it
    GlobalRank = LocalRank = GroupRank = Cycle = Pid = int
