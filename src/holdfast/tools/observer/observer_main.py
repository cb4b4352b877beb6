"""The observer process of a node: metrics and hooks, beside the launcher and at no cost to it.

    launcher ──► files of events, incidents, pages ──► this process ──► Prometheus, commands,
                                                                        other packages' observers

It reads the files five times a second. No rank and no recovery waits for it; the launcher waits at
its end for the last hooks, within a bound. The successor of one that died reads all of it again, so
that counters go on from the same numbers; its hooks get the events since then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from holdfast import __version__
from holdfast.base import clock, wait_for
from holdfast.base.processes.bare_process import TO_JOBS, ignore_signals
from holdfast.base.processes.rank_boot import die_with_parent
from holdfast.base.pure import codec
from holdfast.base.pure.common_events import Note
from holdfast.events.observer_messages import LAST_HOOKS_S, TO_OBSERVER, Notified, Orders, Serving
from holdfast.events.pure.schema import event_of
from holdfast.evidence.pure.evidence import STALL
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError
from holdfast.tools.outages import Outages
from holdfast.tools.run.follower import Follower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools.observer.hooks import Hooks
    from holdfast.tools.observer.metrics import Metrics

CONTROL_FD = 3
_LOOK_S = 0.2
_TRY_S = 5.0
"""Between two tries to listen."""


class Observer:
    """Follows one run."""

    def __init__(self, control: Client, orders: Orders) -> None:
        self._control = control
        self._speaking = threading.Lock()
        self._orders = orders
        self._follower = Follower(Path(orders.run_dir))
        self._incidents = Path(orders.run_dir) / "incidents"
        self._counted: set[str] = set()
        self._notified = {*orders.notified}
        self._read: dict[str, int] = {}
        self._outages = Outages(orders.nproc)
        self._metrics = self._make_metrics() if orders.wanted.metrics_port is not None else None
        self._is_serving = False
        self._serve_at: float | None = None
        self._hooks = self._find_hooks() if orders.wanted.has_hooks else None

    def run(self) -> None:
        """Until the launcher closes the connection, and the last events are handled."""
        self._look()
        while not wait_for.readable(self._control.fileno(), _LOOK_S):
            self._look()
        self._look()
        if self._hooks is not None:
            self._hooks.finish(LAST_HOOKS_S)

    def _look(self) -> None:
        since = self._orders.since
        for fields in self._follower.fresh_fields():
            if (event := event_of(fields)) is not None:
                meanings = list(self._outages.take(event))
                if self._metrics is not None:
                    self._metrics.take(event, meanings)
            at = fields.get("t")
            is_new = since is None or (isinstance(at, int | float) and at >= since)
            if self._hooks is not None and is_new:
                self._hooks.event(fields)
        for path in sorted(self._incidents.glob("*/incident.json")):
            self._look_at(path)
        is_due = self._serve_at is None or clock.monotonic() >= self._serve_at
        if self._metrics is not None and not self._is_serving and is_due:
            self._serve(self._metrics)

    def _look_at(self, path: Path) -> None:
        """Incidents are written again when more is known of them."""
        name = path.parent.name
        try:
            version = path.stat().st_mtime_ns
            if name in self._notified & self._counted or self._read.get(name) == version:
                return
            incident = json.loads(path.read_bytes())
            notifies = incident["notifies"] or self._orders.wanted.on_every_node
        except (OSError, ValueError, LookupError, TypeError):
            return
        self._read[name] = version
        if name not in self._counted:
            self._counted.add(name)
            if self._metrics is not None:
                kind = STALL if incident.get("stall") else incident.get("kind")
                self._metrics.incident(str(kind))
        if notifies and name not in self._notified:
            self._notified.add(name)
            if self._hooks is not None:
                self._hooks.incident(str(path))

    def _make_metrics(self) -> Metrics:
        from holdfast.tools.observer.metrics import Metrics  # noqa: PLC0415 - an extra

        labels = {"node": self._orders.node, "run": self._orders.run}
        return Metrics(self._outages, self._orders.runtime_dir, labels, __version__)

    def _serve(self, metrics: Metrics) -> None:
        """When all that there is was read: counters that grow from 0 once more would be wrong."""
        from holdfast.tools.observer.metrics_server import MetricsServer  # noqa: PLC0415 - an extra

        wanted = self._orders.wanted
        host, port = wanted.metrics_host, wanted.metrics_port or self._orders.port
        try:
            server = MetricsServer(host, port, metrics)
        except OSError as error:
            if self._serve_at is None:
                self._log(
                    "warning",
                    f"no metrics: cannot listen on {host or 'any address'}, port {port}: "
                    f"{error.strerror or error}. This is tried again every {_TRY_S:g} s; "
                    "--ft-metrics-port=0 takes any port that is free",
                )
            self._serve_at = clock.monotonic() + _TRY_S
            return
        self._is_serving = True
        threading.Thread(target=server.serve_forever, name="holdfast-http", daemon=True).start()
        self._send(Serving(server.server_port))
        at = host or self._orders.node
        self._log(
            "info",
            f"metrics are at http://{f'[{at}]' if ':' in at else at}:{server.server_port}/metrics",
        )

    def _find_hooks(self) -> Hooks:
        from holdfast.tools.observer.hooks import Hooks  # noqa: PLC0415 - where wanted

        orders = self._orders
        environ = {"HOLDFAST_NODE": orders.node, "HOLDFAST_RUN_DIR": orders.run_dir}
        wanted = orders.wanted
        return Hooks(
            wanted.on_incident,
            wanted.observers,
            environ,
            lambda text: self._log("warning", text),
            lambda path: self._send(Notified(Path(path).parent.name)),
        )

    def _log(self, level: str, text: str) -> None:
        self._send(Note(level, text))

    def _send(self, message: Note | Serving | Notified) -> None:
        with self._speaking, contextlib.suppress(OSError):
            self._control.send(codec.encode(message))


def _orders(control: Client) -> Orders | None:
    try:
        message = codec.decode(TO_OBSERVER, control.receive(None))
    except (OSError, FrameError):
        return None
    assert isinstance(message, Orders)
    return message


def main() -> None:
    """Be an observer; descriptor 3 is given by ``node/processes/controlled_process.py``."""
    die_with_parent()
    ignore_signals()
    for signum in TO_JOBS:  # a handler, unlike SIG_IGN, ends at the exec of a command
        signal.signal(signum, lambda *_: None)
    control = Client(socket.socket(fileno=CONTROL_FD))
    orders = _orders(control)
    if orders is not None:
        # After Python's own: a job's folder, which may be among it, has files of any name.
        sys.path += [folder for folder in orders.path if folder not in ("", *sys.path)]
        Observer(control, orders).run()
    os._exit(0)
