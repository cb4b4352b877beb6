"""Which rank held up the others, from what all ranks showed when they were told of a hang. Pure.

The rank whose soft timeout ran out is mostly a victim. So each rank notes where its main thread is
before it frees it, and its guard looks at one that it ends; the rules for a hung job
(``evidence/pure/verdict.py``) judge that.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.pure.rank_sets import ranks_of, text_of
from holdfast.evidence.pure.evidence import GroupDigest, RankDigest, Verdict
from holdfast.evidence.pure.verdict import judge


def verdict_of(shown: Mapping[int, RankDigest | None]) -> Verdict | None:
    """Of the hang in which ranks showed this; None: no rank has shown anything.

    Ranks are named by the numbers that processes were born with; what they have seen has those of
    torch, which each restart may change.
    """
    seen = {rank: digest for rank, digest in shown.items() if digest is not None}
    born = {digest.rank: rank for rank, digest in seen.items()}
    try:
        digests = {rank: _renumbered(rank, digest, born) for rank, digest in seen.items()}
        return judge(digests, {}) if digests else None
    except Exception:  # noqa: BLE001 - these are words for people: no restart may end of them
        return None


def _renumbered(rank: int, digest: RankDigest, born: Mapping[int, int]) -> RankDigest:
    def name(ranks: str) -> str:
        return text_of([born[each] for each in ranks_of(ranks) if each in born])

    def of(group: GroupDigest) -> GroupDigest:
        named = {"members": name(group.members), "peers": name(group.peers)}
        return GroupDigest(**(vars(group) | named))

    return RankDigest(**(vars(digest) | {"rank": rank, "groups": tuple(map(of, digest.groups))}))
