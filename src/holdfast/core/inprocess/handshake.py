"""How a rank and the guard of its node show each other that they belong to the same job. Pure.

    rank ──nonce──► guard ──proof, nonce──► rank ──proof──► guard

A name in the abstract namespace belongs to whoever binds it first, of any user: neither side says
the job's token before it has seen a proof. Lean: imported by the guard.
"""

from __future__ import annotations

import hmac

NONCE_CHARS_MAX = 128


def proof(token: str, by: str, nonce: str) -> str:
    """Of knowing ``token``, by the ``by`` ("guard" or "rank") that was sent ``nonce``."""
    said = f"{by} {nonce}".encode("utf-8", "surrogatepass")
    return hmac.new(token.encode(), said, "sha256").hexdigest()


def is_proof(value: object, token: str, by: str, nonce: str) -> bool:
    """Whether ``value`` is :func:`proof`."""
    return (
        isinstance(value, str)
        and value.isascii()
        and hmac.compare_digest(value, proof(token, by, nonce))
    )


def nonce_in(frame: object) -> str | None:
    """The nonce of a frame, if it has one."""
    nonce = frame.get("nonce") if isinstance(frame, dict) else None
    return nonce if isinstance(nonce, str) and 0 < len(nonce) <= NONCE_CHARS_MAX else None
