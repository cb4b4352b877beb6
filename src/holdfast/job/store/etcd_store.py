"""torch's EtcdStore as launchers use it.

torch's own reads the whole folder of its keys for each ``get`` and ``wait``, and wakes up whenever
any of them is written; it cannot delete; and a key whose base64 holds a slash ends up in a folder
that it does not look into. Here a read is of one key, and a wait watches one key, from the state on
that the read before has seen, so that nothing is missed in between.

Importing this module imports torch and etcd.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import etcd  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

from holdfast.base import clock
from holdfast.base.torch_private import Store, coded_by_itself

_PLAIN = re.compile(r"\w[-.\w]*", re.ASCII)
_SLICE = dt.timedelta(seconds=1)
"""Of a wait whose caller names no time; those of this package do."""


@coded_by_itself
class JobsEtcdStore(EtcdStore):  # type: ignore[misc,unused-ignore]
    """A connection of its own to the keys of one job."""

    def get(self, key: str) -> bytes:
        """The value that is there, or LookupError; does not wait."""
        try:
            found: bytes = self.decode(self.client.read(self._path(key)).value)
        except etcd.EtcdKeyNotFound as error:
            raise LookupError(f"key {key!r} is not in etcd") from error
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there now."""
        return all(self._missing_since(self._path(key)) is None for key in keys)

    def wait(self, keys: list[str], timeout: dt.timedelta | None = None) -> None:
        """Wait until all of them are there; LookupError: they were not within the time."""
        until = clock.monotonic() + (timeout or _SLICE).total_seconds()
        for key in keys:
            path = self._path(key)
            while (index := self._missing_since(path)) is not None:
                left_s = until - clock.monotonic()
                if left_s <= 0:
                    raise LookupError(f"key {key!r} is not in etcd")
                with contextlib.suppress(etcd.EtcdWatchTimedOut, etcd.EtcdEventIndexCleared):
                    self.client.watch(path, index=index + 1, timeout=left_s)

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        self.client.delete(self._path(key))
        return True

    def is_away(self, error: Exception) -> bool:
        """Whether etcd may answer again after this error: it is started again, or elects a leader.

        An attempt that failed so may have been carried out.
        """
        import urllib3.exceptions  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

        # ValueError: python-etcd, where a cluster names its members in another way than the user.
        known = (etcd.EtcdException, urllib3.exceptions.HTTPError, OSError, ValueError)
        return isinstance(error, known) and not isinstance(error, LookupError)

    def _path(self, key: str) -> str:
        return f"{self.prefix}{self.encode(key)}"

    def _missing_since(self, path: str) -> int | None:
        """The state of etcd in which there is no such key; None: there is one."""
        try:
            self.client.read(path)
        except etcd.EtcdKeyNotFound as error:
            return int(error.payload["index"])
        return None

    def encode(self, value: str | bytes) -> str:
        """A key or value as etcd has it; in torch's base64 some keys have slashes in them."""
        return urlsafe_b64encode(value.encode() if isinstance(value, str) else value).decode()

    def decode(self, value: str | bytes) -> bytes:
        """What :meth:`encode` was given."""
        return urlsafe_b64decode(value)


def connect(params: RendezvousParameters) -> Store:
    """A connection of its own; the keys are below a folder of the job's own.

    Raises:
        ConnectionError: There is no etcd, or none that can be used.
    """
    try:
        _, made = create_backend(params)
    except Exception as error:
        whole = [str(each) for each in _causes(error)]
        if any("404 page not found" in each for each in whole):
            raise ConnectionError(
                f"the etcd at {params.endpoint} does not speak the v2 protocol, which python-etcd "
                "needs: start it with --enable-v2 (etcd 3.4 and 3.5; later ones have none), or use "
                "--rdzv-backend c10d, which needs no etcd"
            ) from error
        raise ConnectionError(
            f"no etcd answers at {params.endpoint} ({whole[-1]}): check --rdzv-endpoint, and "
            "--rdzv-conf protocol= where it speaks https"
        ) from error
    store: Any = made
    folder = params.run_id
    if not _PLAIN.fullmatch(folder):  # it becomes part of a URL
        folder = urlsafe_b64encode(folder.encode()).decode()
    job: Store = JobsEtcdStore(store.client, f"{store.prefix}{folder}")
    return job


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
