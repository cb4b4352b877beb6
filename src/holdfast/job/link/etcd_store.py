"""torch's EtcdStore as launchers use it.

torch's own has no ``compare_set``, and a key whose base64 holds a slash ends up in a folder that it
does not look into.

Importing this module imports torch and etcd.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import etcd  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

from holdfast.base.torch_private import Store, coded_by_itself

_PLAIN = re.compile(r"\w[-.\w]*", re.ASCII)


@coded_by_itself
class JobsEtcdStore(EtcdStore):  # type: ignore[misc,unused-ignore]
    """A connection of its own to the keys of one job."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set a key that has the ``expected`` value, empty: that is not there; its value then."""
        path = self._path(key)
        condition = {"prevValue": self.encode(expected)} if expected else {"prevExist": False}
        try:
            self.client.write(path, self.encode(value), **condition)
        except (etcd.EtcdAlreadyExist, etcd.EtcdCompareFailed):
            return self.decode(self.client.read(path).value)
        return value.encode()

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
