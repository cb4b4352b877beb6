"""Proofs by which two processes show each other that they are of one job. Pure.

    rank ──nonce──► guard ──proof, nonce──► rank ──proof──► guard

So between a rank and its node's guard, and a launcher and its leader (``job/pure/link.py``). A name
in the abstract namespace belongs to the process of any user that binds it first, and a port to that
of any program: no side sends the job's token before it has seen a proof.
"""

from __future__ import annotations

from _operator import _compare_digest as is_same

try:
    from _blake2 import blake2b  # hashlib and hmac load OpenSSL: megabytes in every node guard
except ImportError:  # a Python that is built otherwise
    from hashlib import blake2b

NONCE_CHARS_MAX = 128


def is_token(value: object, token: str) -> bool:
    """Whether ``value`` is the job's secret, in a time that does not depend on how nearly."""
    return isinstance(value, str) and value.isascii() and is_same(value, token)


def proof(token: str, by: str, nonce: str) -> str:
    """The proof of ``by`` (as "guard" or "rank"), which got ``nonce``: keyed by the token."""
    key = blake2b(token.encode()).digest()
    said = f"{by} {nonce}".encode("utf-8", "surrogatepass")
    return blake2b(said, key=key, digest_size=32).hexdigest()


def is_proof(value: object, token: str, by: str, nonce: str) -> bool:
    """Whether ``value`` is :func:`proof`."""
    return is_token(value, proof(token, by, nonce))


def nonce_in(frame: object) -> str | None:
    """The nonce of a frame, if it has one."""
    nonce = frame.get("nonce") if isinstance(frame, dict) else None
    return nonce if isinstance(nonce, str) and 0 < len(nonce) <= NONCE_CHARS_MAX else None
