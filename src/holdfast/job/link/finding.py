"""Find the leader of a job, or a port to lead it at. Everything here may wait: for a thread."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.base.pure.value import Value
from holdfast.job.pure.leader_key import LeaderKey
from holdfast.net.address import gloo_interface, is_own_address, publish, way_to_endpoint
from holdfast.net.pure.address import unmapped
from holdfast.net.reach import (
    ATTEMPT_S,
    PeerUnreachableError,
    connect,
    connect_host,
    connect_when_reachable,
)
from holdfast.net.tcp import bound_socket

if TYPE_CHECKING:
    from holdfast.job.link.meeting_place import MeetingPlace, OtherBackend
    from holdfast.job.link.other_backends import Election
    from holdfast.job.pure.membership import End

LOGGER = logging.getLogger("holdfast")
_BACKLOG = 4096
_PAUSE_S = 0.5
"""Before another attempt, where an attempt has failed and nothing says when one will not."""
_TAKEN_OVER_BY = 4 / 3
"""After so many times the silence a dead leader has a successor, if any launcher follows it."""
_WHAT_TO_DO = (
    "The launcher there leads the job: check the endpoint (--rdzv-endpoint), that it was started "
    "and that no firewall is between; if it comes up later, give more time (--rdzv-conf "
    "read_timeout=SECONDS)"
)
_WHAT_A_WITNESS_NEEDS = (
    "The launcher there leads the job: check the endpoint, that it was started and that no "
    "firewall is between; if it comes up later, give more time (--join-timeout SECONDS)"
)


class OwnAddress(Value):
    """Where others reach the ranks of this node.

    Attributes:
        address: An address, or a name that leads others here.
        gloo_interface: Ranks need it in ``GLOO_SOCKET_IFNAME``; None: they do not.
    """

    address: str
    gloo_interface: str | None = None


class WayIn(Value):
    """A way into the job.

    Attributes:
        listener: The port of this launcher.
        own: Its address for the others.
        connected: To the launcher that leads, or that knows which does; None: this one leads.
        election: Of another backend, where the launchers meet through one.
    """

    listener: socket.socket
    own: OwnAddress
    connected: socket.socket | None = None
    election: Election | None = None


class JobIsOverError(Exception):
    """This launcher was started for a job that has ended meanwhile."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


class NoTorchError(Exception):
    """There is no torch, and the launchers meet through a backend of it."""


class LeaderEndedError(ConnectionError):
    """The host of the leader is there, and no process listens where the leader did.

    ``is_proved`` False: it may be that of a proxy, or of a firewall.
    """

    def __init__(self, *, is_proved: bool) -> None:
        super().__init__("its launcher has ended")
        self.is_proved = is_proved


class Finder:
    """Looks for the other launchers of one.

    Args:
        place: Where they meet.
        node_id: Of the launcher.
        ended_before: How the job of this launcher has ended already, as this host knows; None: it
            has not, or nothing proves it. Asked when no launcher is found at an endpoint of this
            host.
    """

    def __init__(
        self, place: MeetingPlace, node_id: str, ended_before: Callable[[], End | None]
    ) -> None:
        self._place = place
        self._node_id = node_id
        self._ended_before = ended_before
        self._election: Election | None = None
        self._has_logged_wait = False
        self.stop = threading.Event()

    def find(self) -> WayIn:
        """As long as the launcher that leads may take to come up.

        Raises:
            JobIsOverError: See there.
            ConnectionError: There is no way, for this reason.
        """
        place = self._place
        if place.other is not None:
            return self._find_by_backend(place.other)
        self._log_search()
        host = place.host
        is_here = place.is_host or (place.is_host is None and is_own_address(host))
        is_here = is_here and not place.is_witness
        if is_here:
            host = way_to_endpoint(host)
            try:
                listener = _listen(place.port)
            except OSError as error:
                if place.is_host:
                    raise ConnectionError(_cannot_serve(place, error)) from error
            else:
                self._refuse_if_late(listener)
                return WayIn(listener, self._own_address(None))
        connected = self.find_endpoint()
        seen = unmapped(connected.getsockname()[0]) if host == place.host else None
        return WayIn(_listen(0), self._own_address(seen), connected)

    def find_endpoint(self) -> socket.socket:
        """Connect to the launcher at the endpoint.

        Raises:
            ConnectionError: There is none within the time that it has.
        """
        place = self._place
        try:
            return connect_when_reachable(
                way_to_endpoint(place.host),
                place.port,
                place.connect_s,
                self.stop,
                self._log_wait,
            )
        except PeerUnreachableError as error:
            hint = _WHAT_A_WITNESS_NEEDS if place.is_witness else _WHAT_TO_DO
            raise ConnectionError(f"{error}. {hint}") from None

    def find_endpoint_again(self) -> socket.socket | None:
        """The same, where the other end has closed the connection at once.

        None: the key of another backend names this launcher now.
        """
        self.stop.wait(_PAUSE_S)
        if self._election is None:
            return self.find_endpoint()
        return self._election.hold(self.stop, self._place.connect_s)

    def find_at(self, addr: str, port: int) -> socket.socket:
        """Connect to a launcher that another one, or another backend, has named.

        Raises:
            ConnectionError: There is none.
        """
        return connect_when_reachable(addr, port, 0.0, self.stop)

    def find_candidate(self, addr: str, port: int) -> socket.socket:
        """The same, of a launcher that has been there.

        Raises:
            ConnectionError: There is none.
        """
        try:
            return connect_host(addr, port, min(ATTEMPT_S, self._place.silence_s / 5))
        except ConnectionRefusedError:
            raise LeaderEndedError(is_proved=False) from None
        except (OSError, UnicodeError) as error:
            raise ConnectionError(str(error)) from error

    def find_again(self, address: tuple[object, ...], own: tuple[str, int] | None) -> socket.socket:
        """A connection to the leader that was lost; waits until there is one.

        ``own``: where it serves, as it says itself, if it has answered there; None: not known. The
        address may be a proxy's, which refuses for reasons of its own.

        Raises:
            LeaderEndedError: Its host is there, and it is not.
            ConnectionError: The search was stopped.
        """
        pause_s = 0.0
        while not self.stop.wait(pause_s):
            try:
                return connect(address)
            except ConnectionRefusedError:
                if own is None or own == tuple(address[:2]):
                    raise LeaderEndedError(is_proved=own is not None) from None
            except OSError:  # the way to it is broken: its silence will be judged
                pass
            if own is not None:
                try:
                    return connect_host(*own)
                except ConnectionRefusedError:
                    raise LeaderEndedError(is_proved=True) from None
                except OSError:
                    pass
            pause_s = _PAUSE_S
        raise ConnectionError("stopped")

    def answers(self, addr: str, port: int) -> bool:
        """Whether a program accepts connections there."""
        try:
            connect_host(addr, port).close()
        except (OSError, UnicodeError):  # UnicodeError: a name of an impossible form
            return False
        return True

    def _log_search(self) -> None:
        LOGGER.info("looking for the others of the job %r at %s", self._place.run_id, self._place)

    def _find_by_backend(self, asked: OtherBackend) -> WayIn:
        try:
            from holdfast.job.link.other_backends import Election  # noqa: PLC0415 - imports torch
        except Exception as error:  # a broken torch may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NoTorchError(
                f"torch cannot be imported by {sys.executable} ({reason}), and the launchers meet "
                "through a rendezvous backend of torch: install torch there, or use "
                "--rdzv-backend c10d"
            ) from error
        self._log_search()
        place, listener = self._place, _listen(0)
        own = self._own_address(None)
        named = LeaderKey(own.address, listener.getsockname()[1], 0, self._node_id)
        dead_s = _TAKEN_OVER_BY * place.silence_s
        self._election = election = Election(asked, place.run_id, named, dead_s)
        return WayIn(listener, own, election.hold(self.stop, place.connect_s), election)

    def _refuse_if_late(self, listener: socket.socket) -> None:
        if (end := self._ended_before()) is not None:
            listener.close()
            raise JobIsOverError(end)

    def _log_wait(self, why: str) -> None:
        """A launcher cannot know whether the one it looks for was there before."""
        if self._place.is_witness:
            if not self._has_logged_wait:
                LOGGER.info("waiting for the job at %s: %s", self._place, why)
            self._has_logged_wait = True
            return
        LOGGER.info(
            "waiting for the launcher that leads the job at %s: %s (--rdzv-conf read_timeout=%g). "
            "If the job is over already, end this launcher: it cannot know that",
            self._place,
            why,
            self._place.connect_s,
        )

    def _own_address(self, seen: str | None) -> OwnAddress:
        address = self._place.local_addr
        if address is None:
            published = publish(self._place.host, seen)
            address = published.address
            LOGGER.info("others reach this host at %s: %s", address, published.why)
        interface = gloo_interface(address)
        if interface is not None:
            LOGGER.info(
                "the name of this host, %r, leads to no address that others reach, so its ranks "
                "have gloo listen on %s (GLOO_SOCKET_IFNAME, where that is not set)",
                socket.gethostname(),
                interface,
            )
        return OwnAddress(address, interface)


def _listen(port: int) -> socket.socket:
    listener = bound_socket(port)
    try:
        listener.listen(_BACKLOG)
    except OSError:  # another launcher of this host has bound it, too, and listens
        listener.close()
        raise
    return listener


def _cannot_serve(place: MeetingPlace, error: OSError) -> str:
    return (
        f"launchers cannot meet at {place}: {socket.gethostname()} is to serve there and cannot "
        f"({error.strerror or error}): another program has the port, or the address is not this "
        "host's (--rdzv-endpoint, --rdzv-conf is_host)"
    )
