"""What a job does about ranks that make no steps, for which nobody chose a timeout. Pure, light."""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.page.pure.clocks import PAUSE, STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.evidence.pure.evidence import Verdict


class StallRules(Value):
    """What is done about stalls.

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

    What a stall or a pause is said to be does not hold for a timeout that somebody chose.
    """
    if verdict.is_pause:
        return clock == PAUSE
    return not verdict.is_stall or clock in (PAUSE, STEP)
