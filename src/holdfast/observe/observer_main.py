"""The observer process of a node: metrics and hooks, beside the launcher and at no cost to it.

    launcher ──► files of events, incidents, pages ──► this process ──► Prometheus, commands,
                                                                        other packages' observers

It reads what is written anyway, five times a second. Nothing waits for it: not a rank, not a
recovery. The launcher alone waits at its end for the last hooks, within a bound.
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
from holdfast.core import codec
from holdfast.core.common_events import Note
from holdfast.host import wait_for
from holdfast.host.bare_process import NOT_FOR_US, ignore_signals
from holdfast.host.rank_boot import PR_SET_PDEATHSIG, prctl
from holdfast.observe.follow import Follower
from holdfast.observe.observer_messages import TO_OBSERVER, Orders
from holdfast.observe.outages import Outages
from holdfast.wire.frames import Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.observe.hooks import Hooks
    from holdfast.observe.metrics import Metrics

CONTROL_FD = 3
LAST_HOOKS_S = 5.0
"""How long what is left to be told may take when the job is over."""
_LOOK_S = 0.2
_CHUNK_BYTES = 1 << 16


class Observer:
    """Follows one run.

    Args:
        control: To the launcher.
        orders: What to do.
    """

    def __init__(self, control: socket.socket, orders: Orders) -> None:
        self._control = control
        self._speaking = threading.Lock()
        self._orders = orders
        self._follower = Follower(Path(orders.run_dir))
        self._incidents = Path(orders.run_dir) / "incidents"
        self._seen: set[str] = set()
        self._outages = Outages(orders.nproc)
        self._metrics = self._serve() if orders.wanted.metrics_port is not None else None
        self._hooks = self._find_hooks() if orders.wanted.has_hooks else None

    def run(self) -> None:
        """Until the launcher hangs up, and what it has written last was told."""
        while not wait_for.readable(self._control.fileno(), _LOOK_S):
            self._look()
        self._look()
        if self._hooks is not None:
            self._hooks.finish(LAST_HOOKS_S)

    def _look(self) -> None:
        for event in self._follower.fresh():
            meanings = list(self._outages.take(event))
            if self._metrics is not None:
                self._metrics.take(event, meanings)
            if self._hooks is not None:
                self._hooks.event(event)
        for path in sorted(self._incidents.glob("*/incident.json")):
            if path.parent.name not in self._seen and (kind := _kind_of(path)) is not None:
                self._seen.add(path.parent.name)
                if self._metrics is not None:
                    self._metrics.incident(kind)
                if self._hooks is not None:
                    self._hooks.incident(str(path))

    def _serve(self) -> Metrics | None:
        from holdfast.observe.metrics import Metrics, Server  # noqa: PLC0415 - an extra

        orders = self._orders
        wanted, labels = orders.wanted, {"node": orders.node, "run": orders.run}
        metrics = Metrics(self._outages, orders.runtime_dir, labels, __version__)
        host, port = wanted.metrics_host, wanted.metrics_port or 0
        try:
            server = Server(host, port, metrics)
        except OSError as error:
            self._tell(
                "warning",
                f"no metrics: cannot listen on {host or 'any address'}, port {port}: "
                f"{error.strerror or error}. --ft-metrics-port=0 takes any port that is free",
            )
            return None
        threading.Thread(target=server.serve_forever, name="holdfast-http", daemon=True).start()
        at = host or orders.node
        self._tell(
            "info",
            f"metrics are at http://{f'[{at}]' if ':' in at else at}:{server.server_port}/metrics",
        )
        return metrics

    def _find_hooks(self) -> Hooks:
        from holdfast.observe.hooks import Hooks  # noqa: PLC0415 - where wanted

        orders = self._orders
        environ = {"HOLDFAST_NODE": orders.node, "HOLDFAST_RUN_DIR": orders.run_dir}
        wanted = orders.wanted
        return Hooks(
            wanted.on_incident, wanted.observers, environ, lambda text: self._tell("warning", text)
        )

    def _tell(self, level: str, text: str) -> None:
        with self._speaking, contextlib.suppress(OSError):
            self._control.sendall(encode(codec.encode(Note(level, text))))


def _kind_of(path: Path) -> str | None:
    """Of an incident; None: it is not whole yet."""
    try:
        incident = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return str(incident.get("kind")) if isinstance(incident, dict) else None


def _orders(control: socket.socket) -> Orders | None:
    decoder = Decoder()
    while data := control.recv(_CHUNK_BYTES):
        for frame in decoder.feed(data):
            message = codec.decode(TO_OBSERVER, frame)
            assert isinstance(message, Orders)
            return message
    return None


def main() -> None:
    """Be an observer; descriptor 3 is given by ``host/controlled_process.py``."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    ignore_signals()
    for signum in NOT_FOR_US:  # a handler, unlike SIG_IGN, ends at the exec of a command
        signal.signal(signum, lambda *_: None)
    control = socket.socket(fileno=CONTROL_FD)
    orders = _orders(control)
    if orders is not None:
        # After what is Python's own: a job's folder, which may be among it, has files of any name.
        sys.path += [folder for folder in orders.path if folder not in ("", *sys.path)]
        Observer(control, orders).run()
    os._exit(0)
