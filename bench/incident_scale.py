"""How much processor time the leader takes from the evidence of 16,384 ranks to the verdict.

Messages as they come over the connections, as JSON. 2,048 nodes of 8 ranks, two of which do not
answer; every rank is in three process groups, one rank holds up all others.
"""

from __future__ import annotations

import time

from bench.figures import Bar, Report
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Begin, TimePassed
from holdfast.evidence.pure.evidence import GroupDigest, RankDigest
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import Effect
from holdfast.job.pure.link import FRAME_BYTES_MAX
from holdfast.job.pure.membership import (
    MESSAGES,
    Decision,
    Descriptor,
    Digests,
    Join,
    Judged,
    Round,
    Suspect,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.net.pure import frames

NODES, PER_NODE, SILENT = 2048, 8, 2
SUSPECTS = 100
"""Nodes that find a rank overdue before they hear that the incident is open."""
ROUNDS = 3


def measure(nodes: int = NODES, rounds: int = ROUNDS) -> Report:
    """See the module."""
    report = Report(f"evidence of {nodes * PER_NODE} ranks on {nodes} nodes, {SILENT} silent")
    spent = [_one(nodes) for _ in range(rounds)]
    report.add("leader's CPU, messages to verdict", "s", [cpu for cpu, _ in spent], Bar(1.0))
    report.add("message of a node", "B", [float(size) for _, size in spent])
    return report


def _one(nodes: int) -> tuple[float, int]:
    """Seconds of CPU, and bytes of a message."""
    leader = Leader(Rules(Policy(nodes, nodes), evidence_s=1.0), Pace())
    effects: list[Effect] = leader.handle(Begin(), 0.0)
    for number in range(nodes):
        host = f"gpu-{number:04d}"
        desc = Descriptor(f"10.0.{number >> 8}.{number & 255}", host, PER_NODE, 1000 + number)
        effects += leader.handle(Join(f"{host}-1234-ab12cd34", desc), 0.0)
    [formed] = [one for one in _published(effects) if isinstance(one, Round)]
    world = formed.world_size
    messages = [
        _frame(Suspect(place.node, 0, place.rank_offset)) for place in formed.places[:SUSPECTS]
    ]
    for place in formed.places[SILENT:]:
        ranks = range(place.rank_offset, place.rank_offset + place.nproc)
        digests = tuple(_digest(rank, world) for rank in ranks)
        messages.append(_frame(Digests(place.node, 0, 1, digests)))
    began_s = time.process_time()
    effects = []
    decoder = frames.Decoder(FRAME_BYTES_MAX)
    for frame in messages:
        [body] = decoder.feed(frame)
        message = decode(MESSAGES, body)
        effects += leader.handle(message, 10.0)
    effects += leader.handle(TimePassed(), 10.8)
    spent_s = time.process_time() - began_s
    [judged] = [one for one in _published(effects) if isinstance(one, Judged)]
    assert judged.verdict.culprits == (world // 2,)
    assert judged.without
    return spent_s, len(messages[-1])


def _frame(message: object) -> bytes:
    return frames.encode(encode(message), FRAME_BYTES_MAX)


def _published(effects: list[Effect]) -> list[object]:
    return [effect for effect in effects if isinstance(effect, Decision)]


def _digest(rank: int, world: int) -> RankDigest:
    waits, node = rank != world // 2, rank // PER_NODE
    first = node * PER_NODE
    pending = ("all_reduce float32[25000000]", 5001) if waits else ("", -1)
    groups = (
        GroupDigest("0", f"0-{world - 1}", 5000 + waits, 5000, *pending),
        GroupDigest(f"{1 + node}", f"{first}-{first + PER_NODE - 1}", 400, 400),
        GroupDigest(f"{9001 + rank % PER_NODE}", f"{rank % PER_NODE}-{world - 1}/{PER_NODE}", 3, 3),
    )
    return RankDigest(
        rank,
        f"gpu-{node:04d}",
        rank % PER_NODE,
        4000 + rank,
        state="S",
        wchan="futex_wait_queue",
        cpu=0.02,
        switches=3,
        overdue="section 'step'" if waits else "",
        section="step" if waits else "data",
        section_s=60.1,
        beat_s=61.2,
        iteration=5000,
        stack="ab12cd34" if waits else "ffee0011",
        place="train_step train.py:88" if waits else "load_batch data.py:12",
        call="all_reduce" if waits else "",
        is_in_collective=waits,
        helper="answered",
        groups=groups,
    )
