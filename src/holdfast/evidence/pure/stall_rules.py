"""Rules of a job for ranks that make no steps and have no chosen timeout. Pure, light."""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.page.pure.clocks import PAUSE, STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.evidence.pure.evidence import Verdict


class StallRules(Value):
    """Reaction to stalls.

    Attributes:
        floor_s: A rank that is stopped is ended for it after so long.
        ends: Ranks are ended at proof.
        after_s: Ranks are also ended after so long without progress, if the verdict names a rank
            that others wait for; None: never.
    """

    floor_s: float = 600.0
    ends: bool = True
    after_s: float | None = None


def belongs_to(clock: str, verdict: Verdict) -> bool:
    """Whether a rank whose clock ran out soon after the verdict on others has its part in that.

    The verdict on a stall or a pause does not hold for a timeout that was chosen.
    """
    if verdict.is_pause:
        return clock == PAUSE
    return not verdict.is_stall or clock in (PAUSE, STEP)
