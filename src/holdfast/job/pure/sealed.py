"""Messages that only launchers of one job can have written. Pure: bytes in, bytes out.

Any program that reaches the store of the launchers can write to it. So each message carries a code
that only holders of the job's secret can make, over everything that gives it a meaning::

    holdfast1 <session> <HMAC-SHA256 of job, slot, session, body> <body: JSON>

- *job*: its name (``--rdzv-id``): excludes messages of another job with the same secret.
- *slot*: the key in the store, as ``up/17``: excludes messages that were copied to another place.
- *session*: drawn by the leader at each start of the job: excludes messages of earlier starts.
  Every launcher asks for it with a number that was never used before (``welcome/<nonce>``), so that
  no old answer fits.

Without a secret the code keeps out accidents, but no program that knows this file. Nothing keeps a
program that reaches the store from destroying messages: docs/security.md.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

MAX_BYTES = 16 << 20
"""Longest message that is read; the round of 10,000 nodes has 1 MiB."""

_MAGIC = b"holdfast1"
_MAC_LENGTH = hashlib.sha256().digest_size * 2


class SealError(ValueError):
    """A body that is no message of this job."""


class UnsignedError(SealError):
    """It has the form of a message, and was not made with this secret, or not for this place."""


class UnreadableError(SealError):
    """It cannot be read as JSON, signed or not."""


class Sealer:
    """Signs messages of one job, and reads those that were signed with the same secret.

    Args:
        secret: Of the job; None: it has none.
        job: Its name.
    """

    def __init__(self, secret: str | None, job: str) -> None:
        self.has_secret = bool(secret)
        self._key = hashlib.sha256(b"holdfast job secret\0" + _bytes(secret or "")).digest()
        self._job = _bytes(job)

    def __repr__(self) -> str:
        return f"Sealer(job={self._job!r}, {'a' if self.has_secret else 'no'} secret)"

    def seal(self, slot: str, session: str, message: Mapping[str, object]) -> bytes:
        """``message`` for this slot of this session; the session has no blanks in it."""
        body = json.dumps(message).encode()
        mac = self._mac(slot, session.encode(), body)
        return b" ".join((_MAGIC, session.encode(), mac, body))

    def open(self, slot: str, session: str | None, data: bytes) -> object:
        """The message that was sealed for this slot of this session; None: of whichever.

        Raises:
            UnsignedError: It was not, as far as this secret tells.
            UnreadableError: It was, and is no JSON.
            SealError: It has not the form of a message, or is of another start of the job.
        """
        theirs, mac, body = _parts(data)
        if not hmac.compare_digest(mac, self._mac(slot, theirs, body)):
            raise UnsignedError("it is not signed with this job's secret, or was copied here")
        if session is not None and theirs != session.encode():
            raise SealError("it was signed in another start of the job, and copied here")
        return parse(body)

    def _mac(self, slot: str, session: bytes, body: bytes) -> bytes:
        mac = hmac.new(self._key, _MAGIC, hashlib.sha256)
        for part in (self._job, _bytes(slot), session, body):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest().encode()


def unsigned_body(data: bytes) -> object:
    """The claims of a message that any program may have written: only for people."""
    return parse(_parts(data)[2])


def parse(body: bytes) -> object:
    """JSON; UnreadableError: it is none, nested too deep, or has numbers that are too long."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one of the first
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UnreadableError(f"it cannot be read as JSON ({reason[:100]})") from None
    return parsed


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    if len(data) > MAX_BYTES:
        raise SealError(f"it has {len(data)} bytes, more than {MAX_BYTES}")
    magic, _, rest = data.partition(b" ")
    session, _, rest = rest.partition(b" ")
    mac, blank, body = rest.partition(b" ")
    if magic != _MAGIC or not blank or len(mac) != _MAC_LENGTH:
        raise SealError(f"it is not a message of a launcher ({len(data)} bytes of {data[:24]!r})")
    return session, mac, body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
