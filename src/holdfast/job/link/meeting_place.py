"""Where the launchers of a job meet: at the endpoint of one of them, or through another backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.base.pure.value import Value
from holdfast.net.pure.address import Endpoint


class OtherBackend(Value):
    """A rendezvous backend of torch that has a store of its own: torch's parameters for it.

    Attributes:
        name: As it is registered with torch.
        endpoint: Of its service, as the backend reads it.
        min_nodes, max_nodes: Of the job.
        local_addr: Address of this launcher; None: the backend finds out.
        conf: ``--rdzv-conf``.
    """

    name: str
    endpoint: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    conf: Mapping[str, str]


@dataclass(frozen=True)
class MeetingPlace:
    """Where the launchers of a job meet.

    Attributes:
        host, port: Of the endpoint; the launcher on that host serves there, and leads.
        is_host: This launcher serves; None: it does if the address is one of this host and the port
            is free.
        is_witness: It never leads, and so does not serve either.
        connect_s: How long to wait for the launcher that serves, in seconds.
        run_id: Names the job.
        silence_s: How long another launcher may be silent.
        other: They meet through another backend; host and port only name its service.
        secret: Of the job, by which its launchers know each other; None: there is none.
        local_addr: Address of this launcher for the others; None: looked up.
    """

    host: str
    port: int
    is_host: bool | None
    connect_s: float
    run_id: str
    silence_s: float = 15.0
    other: OtherBackend | None = None
    secret: str | None = field(default=None, repr=False)
    local_addr: str | None = None
    is_witness: bool = False

    def __str__(self) -> str:
        if self.other is not None:
            return f"{self.other.endpoint or 'no endpoint'} ({self.other.name})"
        return str(Endpoint(self.host, self.port))
