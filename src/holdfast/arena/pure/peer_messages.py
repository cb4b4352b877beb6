"""Messages about copies of snapshots on other nodes. Pure.

Between a launcher and its process for copies (``arena/peer_copies_main.py``)::

    launcher ──ConfigureCopies──────────────────────►  process, once
             ──HoldCopies, with the memory──────────►  copies of this rank may be written there
             ──DropCopies───────────────────────────►  ◄── CopiesDropped
             ──PushCopy, with the memory────────────►  ◄── CopyPushed, or CopyNotPushed
                                                       ◄── CopyUnderWay, CopyReceived, CopyRefused

Between two of those processes, on a connection for one copy, in this order::

    sender                                             receiver
      GreetReceiver(nonce) ─────────────────────────►
                              ◄─────────────────────── ReceiverProof(nonce, proof)
      SenderProof(proof) ───────────────────────────►
                              ◄─────────────────────── SenderAdmitted
      CopyBegins ───────────────────────────────────►
                              ◄─────────────────────── CopyWanted, CopyHeld or CopyTurnedDown
      the bytes; CopyEnds, or CopyDropped ──────────►
                              ◄─────────────────────── CopyHeld or CopyTurnedDown

Each side waits for the other at each arrow, so that no byte of a snapshot is read as a message.
"""

from __future__ import annotations

from typing import Annotated

from holdfast.arena.pure.snapshots import Held
from holdfast.base.pure.codec import Count, Name, Raw, Text, Whole, family
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.value import Value
from holdfast.net.pure.handshake import is_proof, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

Port = Annotated[int, Whole(1, 65535)]
FRAME_BYTES_MAX = 4096
NONCE_BYTES = 16
SILENT_S = 30.0
"""A copy whose other end says nothing for so long is given up."""
UNDER_WAY_S = 2.0
"""Between two messages about a copy that is being received."""


# ---------------------------------------------------------------- launcher and its process
class ConfigureCopies(Value):
    """The first message.

    Attributes:
        job: Its name, escaped (``ascii``).
        secret: Of the job; None: it has none.
    """

    job: Name
    secret: Raw | None = None


class HoldCopies(Value):
    """Copies of snapshots of ``rank`` may be written to the memory that comes with this.

    Attributes:
        rank: Global.
        bytes_max: Of one snapshot.
    """

    rank: Count
    bytes_max: Count


class DropCopies(Value):
    """No copies of this rank any more; one that is being received is given up."""

    rank: Count


class CopiesDropped(Value):
    """No thread writes copies of this rank any more."""

    rank: Count


class PushCopy(Value):
    """Send a snapshot in the memory that comes with this.

    Attributes:
        number: Of this order, for the answer.
        held: The snapshot. Its memory is given back when the answer is here.
        kept: A step that the receiver must not overwrite; 0: none.
        host, port: Of the process for copies of the other node.
    """

    number: Count
    held: Held
    kept: Count
    host: Name
    port: Port


class CopyPushed(Value):
    """The other node has it, whole and committed."""

    number: Count


class CopyNotPushed(Value):
    """It is not there. ``why``: for people."""

    number: Count
    why: Text


class CopyUnderWay(Value):
    """A copy of a snapshot of this rank is being received."""

    rank: Count


class CopyReceived(Value):
    """It is here, whole and committed."""

    held: Held


class CopyRefused(Value):
    """A copy came and is not here. ``why``: for people."""

    held: Held
    why: Text


Order = ConfigureCopies | HoldCopies | DropCopies | PushCopy
Outcome = CopiesDropped | CopyPushed | CopyNotPushed | CopyUnderWay | CopyReceived | CopyRefused
TO_COPIES: Mapping[str, type[Order]] = family(Order)
FROM_COPIES: Mapping[str, type[Outcome | Note]] = family(Outcome | Note)


# ---------------------------------------------------------------- two such processes
class GreetReceiver(Value):
    """A process of ``job`` would send a copy. ``nonce``: hexadecimal digits."""

    job: Name
    nonce: Name


class ReceiverProof(Value):
    """The receiver holds the secret of the job."""

    nonce: Name
    proof: Name


class SenderProof(Value):
    """So does the sender."""

    proof: Name


class SenderAdmitted(Value):
    """The sender's proof was right."""


class CopyBegins(Value):
    """A snapshot follows, if it is wanted.

    Attributes:
        held: Its name.
        n_bytes: Of the file.
        kept: The receiver does not overwrite this step; 0: none.
    """

    held: Held
    n_bytes: Count
    kept: Count


class CopyWanted(Value):
    """There is room for it."""


class CopyEnds(Value):
    """All bytes are out, and the snapshot did not change meanwhile.

    Attributes:
        crc32: Of the bytes, as zlib has it.
        total: Their sum, as the rank has added them (``arena/sums.py``); None: it has not yet.
    """

    crc32: Count
    total: int | None = None


class CopyDropped(Value):
    """Those bytes are worth nothing: the rank has written there meanwhile."""


class CopyHeld(Value):
    """It is here, whole and committed."""


class CopyTurnedDown(Value):
    """It is not wanted, or its bytes are wrong. ``why``: for people."""

    why: Text


GREETINGS: Mapping[str, type[GreetReceiver]] = family(GreetReceiver)
PROOFS: Mapping[str, type[SenderProof]] = family(SenderProof)
FirstAnswer = ReceiverProof | CopyTurnedDown
FIRST_ANSWERS: Mapping[str, type[FirstAnswer]] = family(FirstAnswer)
SecondAnswer = SenderAdmitted | CopyTurnedDown
SECOND_ANSWERS: Mapping[str, type[SecondAnswer]] = family(SecondAnswer)
Decision = CopyWanted | CopyHeld | CopyTurnedDown
DECISIONS: Mapping[str, type[Decision]] = family(Decision)
BEGINNINGS: Mapping[str, type[CopyBegins]] = family(CopyBegins)
CopyEnd = CopyEnds | CopyDropped
ENDS: Mapping[str, type[CopyEnd]] = family(CopyEnd)


class CopySecret:
    """The job's secret, and its proofs; without one they keep out accidents alone."""

    def __init__(self, config: ConfigureCopies) -> None:
        self.job = config.job
        self._secret = config.secret or ""

    def proof(self, by: str, senders: str, receivers: str) -> str:
        """The proof of ``by`` ("sender" or "receiver"), for the nonces of both."""
        return proof(self._secret, f"copy {by}", f"{senders} {receivers} {self.job}")

    def is_proof(self, value: str, by: str, senders: str, receivers: str) -> bool:
        """Whether ``value`` is :meth:`proof`."""
        said = f"{senders} {receivers} {self.job}"
        return is_proof(value, self._secret, f"copy {by}", said)


def is_nonce(value: str) -> bool:
    """Whether a nonce has the form that makes a proof unambiguous."""
    return len(value) == 2 * NONCE_BYTES and not value.strip("0123456789abcdef")


def slot_for(
    usable: Mapping[int, Held | None], kept: frozenset[int], *, is_listed: bool = False
) -> int | None:
    """The slot that a copy is written to; None: all hold snapshots that stay.

    Args:
        usable: The snapshot in each slot, or None.
        kept: Steps that are not overwritten.
        is_listed: The leader has a list of them, and may choose any: none is overwritten.
    """
    free = {index: it for index, it in usable.items() if it is None or it.step not in kept}
    empty = [index for index, it in free.items() if it is None]
    if empty or is_listed:
        return min(empty, default=None)
    held = {index: it.id for index, it in free.items() if it is not None}
    return min(held, key=held.__getitem__, default=None)
