"""Where the launchers of a job meet: a store that one of them hosts, or another backend's."""

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
        patience_s: How long its store may be away and come back: as long as silence may last.
    """

    name: str
    endpoint: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    conf: Mapping[str, str]
    patience_s: float = 0.0


@dataclass(frozen=True)
class StoreAddress:
    """Where the launchers of a job meet.

    Attributes:
        host, port: Of the store.
        hosts_store: This launcher hosts it; None: it does so if the address is one of this host and
            the port is free.
        connect_s: How long to wait for the launcher that hosts it, in seconds.
        run_id: Names the job within the store.
        other: The store is another backend's; host and port only name its service, and of the rest
            only the name of the job counts.
        secret: Signs the messages of all launchers of the job; None: they are not signed.
        local_addr: Address of this launcher for the others; None: looked up.
    """

    host: str
    port: int
    hosts_store: bool | None
    connect_s: float
    run_id: str
    other: OtherBackend | None = None
    secret: str | None = field(default=None, repr=False)
    local_addr: str | None = None

    @property
    def prefix(self) -> str:
        """Before all keys of the job."""
        return f"holdfast/{self.run_id}"

    def __str__(self) -> str:
        if self.other is not None:
            return f"{self.other.endpoint or 'no endpoint'} ({self.other.name})"
        return str(Endpoint(self.host, self.port))
