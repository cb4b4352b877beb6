"""From the digests of all ranks to the ranks that hold up the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.evidence import Missing, RankDigest, Verdict


def judge(digests: Mapping[int, RankDigest], missing: Mapping[str, Missing]) -> Verdict:
    """Name the culprits.

    Args:
        digests: By global rank.
        missing: Nodes that have sent none, by name.
    """
    del digests, missing
    return Verdict()
