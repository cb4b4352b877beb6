"""Messages between one launcher's part in finding the next leader and the rest of that launcher.

The offers and decisions of other launchers are in :mod:`.membership`.
"""

from __future__ import annotations

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.value import Value
from holdfast.job.pure import membership as msg
from holdfast.job.pure.member_messages import LeaderFound


# ---------------------------------------------------------------- events
class LeaderDied(Value):
    """The launcher that led has died, as its kernel says; ``text``: for people."""

    text: str


class LeaderSilent(Value):
    """The leader may be there, but not for this launcher.

    ``ranks_s``: for how long its ranks may be alive, at most.
    """

    text: str
    ranks_s: float


class Ready(Value):
    """The own ranks are gone; ``join`` is for the leader that comes next. Again: it says more."""

    join: msg.Join


class Reached(Value):
    """The launcher that was approached is there, and would take a vote."""

    node: str


class NotReached(Value):
    """It is not, or it does not answer; it has no vote of this launcher."""

    node: str


class PeerDied(Value):
    """A launcher that had answered has died, as its kernel says."""

    node: str


class Follows(Value):
    """The launcher that has this one's vote leads."""


class LeaderKnown(Value):
    """A launcher of the job has proved that it leads there, in this term."""

    term: int
    leads_at: msg.Successor


class KeyTaken(Value):
    """The key names this launcher, in this term; ``before``: the node that it named, or empty."""

    before: str
    term: int


class KeyHeld(Value):
    """The key names another launcher, which was not among the dead."""

    holder: msg.Successor


class Released(Value):
    """A launcher gives a vote back.

    ``term``: the next that it could lead in; ``asks``: for the vote in that. ``ahead``: the
    launcher that it would have lead, or that leads; None: it knows none.
    """

    node: str
    term: int
    asks: bool = False
    ahead: msg.Successor | None = None


Event = (
    msg.Decision
    | LeaderDied
    | LeaderSilent
    | Ready
    | Reached
    | NotReached
    | PeerDied
    | Follows
    | Released
    | LeaderKnown
    | KeyTaken
    | KeyHeld
    | msg.Offer
    | TimePassed
)
"""A decision: of the leader that this launcher follows. ``Offer``: of another launcher."""


# ---------------------------------------------------------------- effects
class Approach(Value):
    """Connect to this launcher, in the place of the one before; answer Reached or NotReached."""

    successor: msg.Successor


class Give(Value):
    """Send the offer to the launcher that was reached."""

    to: str
    offer: msg.Offer


class LeaveLeader(Value):
    """Close the connection to the leader, which is silent, or to the launcher approached."""


class Release(Value):
    """Tell these launchers that their votes were for nothing, and never count them again."""

    nodes: tuple[str, ...]
    term: int
    asks: bool = False
    ahead: msg.Successor | None = None


class ClaimKey(Value):
    """Take the key if it names one of these dead launchers; answer KeyTaken or KeyHeld.

    ``term``: the least that it may be taken in. See :mod:`.succession_by_key`.
    """

    term: int
    dead: tuple[str, ...]


class Leads(Value):
    """This launcher leads from now on.

    Attributes:
        term: Of it, greater than that of every leader before.
        round: The last one.
        electorates: A majority of each counts until the next round is settled.
        offers: Of the launchers that follow.
        stop: Of the last round's cycle; None: it ran.
        ranks_until: No ranks of the leaders before are alive after that.
        leases_until: None of them has a lease after that.
        ended: Launchers that are.
        incident: Number of the last one.
        text: How the leader was lost, for people.
        leader: The node that led, as far as this launcher knows: it may have formed no round.
        called: Launchers that may lead without knowing of this one, or be asked by those that look
            for a leader: all are called.
    """

    term: int
    round: msg.Round
    electorates: tuple[frozenset[str], ...]
    offers: tuple[msg.Offer, ...]
    stop: msg.StopCycle | None
    ranks_until: float
    leases_until: float
    ended: frozenset[str]
    incident: int
    text: str
    leader: str
    called: tuple[msg.Successor, ...] = ()


ToShell = Approach | Give | LeaveLeader | Release | ClaimKey | Leads
Effect = ToShell | LeaderFound
