"""What a launcher and its observer process say to each other.

Their JSON form follows from their fields (``base/pure/codec.py``). The launcher sends ``Orders``,
once, and hangs up when the job is over. The observer sends ``Note``, a line of the log, and what a
successor needs if it dies: ``Serving``, ``Notified``.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.value import Value

GROUP = "holdfast.observers"
"""Of entry points; each names a callable that takes one event, a dict, in a thread of its own."""
LAST_HOOKS_S = 5.0
"""How long an observer may take for what is left to be told when the job is over."""


class Wanted(Value):
    """What people want to be told.

    Attributes:
        metrics_port: Where metrics are served; 0: on any free port; None: nowhere.
        metrics_host: Address that is listened on; empty: all of this host.
        on_incident: Words of a command that is started with the path of an incident.
        on_every_node: Each node that has written an incident starts it; else one node of the job.
        observers: Names of entry points that are called with each event.
    """

    metrics_port: Count | None = None
    metrics_host: Raw = ""
    on_incident: tuple[Raw, ...] = ()
    observers: tuple[Raw, ...] = ()
    on_every_node: bool = False

    @property
    def has_hooks(self) -> bool:
        """Somebody wants to hear of the last event, too, before the launcher is gone."""
        return bool(self.on_incident or self.observers)


class Orders(Value):
    """The first message to an observer.

    Attributes:
        wanted: What it does.
        run_dir: Folder of events and incidents.
        runtime_dir: Folder of the ranks' pages.
        nproc: Ranks of this node.
        node: Name of this host.
        run: Name of the job.
        path: Where the launcher looks for modules.
        port: Where metrics were served until the last observer died; 0: nowhere.
        notified: Names of incidents that the command has run with.
        since: The instant when the last observer died: hooks know of what was before; None: it is
            the first.
    """

    wanted: Wanted
    run_dir: Raw
    runtime_dir: Raw
    nproc: Count
    node: Raw
    run: Raw
    path: tuple[Raw, ...] = ()
    port: Count = 0
    notified: tuple[Raw, ...] = ()
    since: float | None = None


class Serving(Value):
    """Metrics are served at this port."""

    port: Count


class Notified(Value):
    """The command has run with the incident of this name."""

    incident: Raw


TO_OBSERVER = family(Orders)
FROM_OBSERVER = family(Note | Serving | Notified)
