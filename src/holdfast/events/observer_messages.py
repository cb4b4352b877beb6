"""Messages between a launcher and its observer process (JSON by ``base/pure/codec.py``).

The launcher sends ``Orders`` once and closes the connection when the job is over. The observer
sends ``Note``, a line of the log, and ``Serving`` and ``Notified``, which its successor gets.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.value import Value

GROUP = "holdfast.observers"
"""Of entry points; each names a callable that takes one event, a dict, in a thread of its own."""
LAST_HOOKS_S = 5.0
"""Limit for hooks that still run or wait when the job is over."""


class ObserverConfig(Value):
    """Metrics and hooks that a command line asks for.

    Attributes:
        metrics_port: Port for metrics; 0: any free one; None: no metrics.
        metrics_host: Address to listen on; empty: all of this host.
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
        """A hook waits for events, so that the launcher waits for the last one at its end."""
        return bool(self.on_incident or self.observers)


class Orders(Value):
    """The first message to an observer.

    Attributes:
        run_dir: Folder of events and incidents.
        runtime_dir: Folder of the ranks' pages.
        path: The launcher's ``sys.path``.
        port: Where metrics were served until the last observer died; 0: nowhere.
        notified: Names of incidents that the command has run with.
        since: Instant of the death of the last observer: its hooks had all earlier events; None:
            there was none.
    """

    wanted: ObserverConfig
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
