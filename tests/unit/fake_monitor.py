"""A monitor that does what a test tells it, over a real Unix socket and a real page."""

import os
import socket
import threading

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.net.endpoint import listen
from holdfast.net.pure.frames import Decoder, encode
from holdfast.page.page import Page, create_page, map_page
from holdfast.page.pure import page as layout

BOUND_S = 30


class FakeMonitor:
    """Serves connections one after the other, in a thread.

    Attributes:
        heard: Every message, in order.
        reply: Operation to the answer, or to "hang up" / "silence" / "late" (with the next answer);
            taken once, then the default.
    """

    def __init__(self, folder, **cfg) -> None:
        self.path = str(folder / "monitor.socket")
        self.page_path = str(folder / "c0_r0.page")
        create_page(self.page_path, 0)
        self.cfg = FaultToleranceConfig(**cfg).to_wire()
        self.dump = None
        self.cycle = 0
        self.learned = {"heartbeat": False, "out_of_section": False, "sections": []}
        self.heard = []
        self.reply = {}
        self.left = threading.Event()
        self._listener = listen(self.path)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def page(self) -> Page:
        """The page as a reader sees it."""
        return map_page(self.page_path, writable=False)

    def word(self, index: int) -> float:
        """One word of the page, as a reader sees it now."""
        page = self.page()
        try:
            return page.words[index]
        finally:
            page.close()

    def slot(self, name: str) -> list[float]:
        """Opened at, longest, limit and learned of a section."""
        page = self.page()
        try:
            first = layout.slot(page.names().index(name))
            return list(page.words[first : first + layout.TOTAL_S])
        finally:
            page.close()

    def operations(self) -> list[str]:
        return [message["op"] for message in self.heard]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(BOUND_S)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted:
                self.left.clear()
                self._talk(accepted)
            self.left.set()

    def _talk(self, accepted: socket.socket) -> None:
        decoder = Decoder()
        late = b""
        while True:
            try:
                data = accepted.recv(1 << 16)
            except ConnectionError:
                return
            if not data:
                return
            for message in decoder.feed(data):
                self.heard.append(message)
                answer = self.reply.pop(message["op"], None) or self._answer(message)
                if answer == "hang up":
                    return
                if answer == "late":
                    late += encode(self._answer(message))
                elif answer != "silence":
                    accepted.sendall(late + encode(answer))
                    late = b""

    def _answer(self, message):
        if message["op"] == "hello":
            return {
                "op": "welcome",
                "cfg": self.cfg,
                "page": self.page_path,
                "dump": self.dump,
                "cycle": self.cycle,
                "learned": self.learned,
            }
        return {"op": "ok"}


def rank_environment(monitor: FakeMonitor, **more: str) -> dict[str, str]:
    """What a launcher would export."""
    return {
        **os.environ,
        "FT_RANK_MONITOR_IPC_SOCKET": monitor.path,
        "RANK": "3",
        "LOCAL_RANK": "1",
        **more,
    }
