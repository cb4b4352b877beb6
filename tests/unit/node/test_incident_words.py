"""An incident of the job: two lines, a screen, and JSON, which say the same."""

from __future__ import annotations

import json
from typing import Any

from docs.tables import documented

from holdfast.evidence.pure.evidence import GroupDigest, RankDigest
from holdfast.evidence.pure.verdict import judge
from holdfast.node.pure.incident_words import (
    NodeIncident,
    detail_line,
    headline,
    lines,
    next_steps,
    report,
    to_json,
)
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.watch.pure.monitor_messages import Overdue, Signalled

WAITS = GroupDigest("0 gloo", "0-15", 21, 20, pending="all_reduce Float[8]", seq=21)
CULPRIT = RankDigest(
    *(5, "n0", 5, 105),
    state="S",
    waits_for="lock",
    place="load_batch data.py:88",
    stack="aa",
    groups=(GroupDigest("0 gloo", "0-15", 20, 20),),
)


def incident(**more: Any) -> NodeIncident:
    digests = {
        rank: RankDigest(rank, "n0", rank, 100 + rank, state="S", groups=(WAITS,))
        for rank in range(16)
        if rank != 5
    }
    digests[5] = CULPRIT
    digests[3] = RankDigest(**{**vars(digests[3]), "overdue": "section 'step'"})
    cause = Overdue(0, 3, 3, 103, "section", "step", 300.1, 300.0, False, 1300.0, 1300.1)
    over = IncidentOver(2, 0, (), judge(digests, {}), digests, "")
    about = "n0", "2026-01-31 23:59:59 +0000", 1e9
    return NodeIncident(over, *about, cause=cause, evidence_s=0.09, **more)


def test_a_verdict_has_its_few_words_beside_the_sentence() -> None:
    """For tables: no reader cuts pids or the other ranks out of the reason."""
    verdict = incident().over.verdict
    assert verdict.reason.startswith("rank 5 (pid 105, node n0) waits for a lock in ")
    assert verdict.short == "rank 5 waits for a lock in `load_batch` data.py:88"


def test_the_culprit_comes_first_with_its_line_and_the_others_are_one_group() -> None:
    text = headline(incident().over.verdict)

    assert text == "rank 5 in `load_batch` data.py:88 · 15 others in `all_reduce`"


FOLDER = "/runs/1/incidents/0002-cycle0"


def test_a_launcher_logs_the_culprit_and_the_ranks_that_wait_then_the_path() -> None:
    assert lines(incident(), FOLDER, 150) == [
        (
            "rank 5 (pid 105, node n0) waits for a lock in `load_batch` data.py:88; 15 other ranks "
            "wait for it in `all_reduce`"
        ),
        f"  incident 2 of cycle 0, evidence of 16 of 16 ranks: {FOLDER}",
    ]


def test_the_timeout_and_the_next_steps_are_at_the_level_debug() -> None:
    """And in incident.txt, which the path leads to."""
    assert detail_line(incident()) == (
        "timed out: rank 3: Section 'step' has been open for 300.1 s, timeout 300.0 s. See what it "
        "waits for there. rank5.txt on node n0 has all threads. To allow longer: "
        "--ft-rank-section-timeouts step:600"
    )


def test_a_sentence_that_does_not_fit_gives_way_to_the_few_words() -> None:
    short = incident().over.verdict.short
    assert lines(incident(), FOLDER, 100)[0] == f"{short}; 15 others in `all_reduce`"


def test_a_file_without_stacks_is_not_said_to_have_all_threads() -> None:
    """A stopped rank is woken for them after the verdict; one that the freezer holds is not."""
    shown = {**vars(CULPRIT), "stack": "", "lacks": "no stacks: there was no time"}
    for more, ends in (
        ({}, "says why it has no stacks"),
        ({"state": "D"}, "says why it has no stacks"),
        ({"state": "T"}, "has all threads"),
    ):
        found = incident()
        digests = {**found.over.digests, 5: RankDigest(**{**shown, **more})}
        found.over = IncidentOver(**{**vars(found.over), "digests": digests})
        assert f"rank5.txt on node n0 {ends}" in next_steps(found)


def test_an_incident_of_calls_that_do_not_match_has_the_line_of_each() -> None:
    """And the files with the stacks of one rank of each side."""
    digests = {
        rank: RankDigest(
            *(rank, f"n{rank}", 0, 100 + rank),
            state="S",
            place=f"step train.py:{40 + rank}",
            groups=(GroupDigest("0 gloo", "0,1", 21, 20, pending=call, seq=21),),
        )
        for rank, call in enumerate(("all_reduce Float[3]", "broadcast Float[3]"))
    }
    found = incident()
    found.over = IncidentOver(2, 0, (), judge(digests, {}), digests, "")

    assert [group.doing for group in found.over.verdict.groups] == [
        "in `all_reduce Float[3]` of group 0 gloo (collective 21) in `step` train.py:40",
        "in `broadcast Float[3]` of group 0 gloo (collective 21) in `step` train.py:41",
    ]
    assert (
        "called `all_reduce Float[3]` of group 0 gloo (collective 21) in `step` train.py:40; "
        in (found.over.verdict.reason)
    )
    assert next_steps(found)[1] == (
        "rank0.txt on node n0 and rank1.txt on node n1 have the stacks and last collectives of "
        "these calls"
    )


def test_the_text_is_a_screen_with_all_that_is_asked_at_three_in_the_morning() -> None:
    text = report(incident(signals=[Signalled(0, 5, 105, 9, "hung")], cost_s=312.4))

    assert text.splitlines() == [
        "Incident 2, cycle 0, 2026-01-31 23:59:59 +0000, on n0",
        "",
        (
            "rank 5 (pid 105, node n0) waits for a lock in `load_batch` data.py:88; 15 other ranks "
            "wait for it in `all_reduce`."
        ),
        "",
        "ranks       rank 5 in `load_batch` data.py:88 · 15 others in `all_reduce`",
        "kind        waiting, confidence high",
        "found by    section 'step' of rank 3, timeout 300.0 s",
        "stderr      not kept of rank 5: it goes to a terminal (--redirects 2 or --tee 2 keeps it)",
        "evidence    of 16 of 16 ranks, 0.09 s after that",
        "done        SIGKILL to rank 5: hung",
        "next        See what it waits for there",
        "            rank5.txt on node n0 has all threads",
        "            To allow longer: --ft-rank-section-timeouts step:600",
        "cost        312.4 s without progress, until a rank of the next cycle reported",
    ]


IDENTITY = ("rank", "node", "local_rank", "pid")
"""Fields that need no words."""


def names_of(thing: object) -> set[str]:
    """Fields that docs/incidents.md has of it."""
    return {name for names, _ in documented(thing) for name in names.split(", ")}


def test_the_json_has_what_the_text_has_for_programs() -> None:
    shown = json.loads(json.dumps(to_json(incident())))

    assert shown["schema_version"] == 1
    assert set(shown) == names_of(to_json)
    assert set(shown["ranks"]["5"]) <= {*names_of(RankDigest), "stderr", *IDENTITY}
    assert set(shown["ranks"]["5"]["groups"][0]) <= names_of(GroupDigest)
    assert (shown["culprits"], shown["kind"], shown["confidence"]) == ([5], "waiting", "high")
    assert shown["groups"][0] == {"ranks": [5], "text": "in `load_batch` data.py:88"}
    assert shown["groups"][1]["ranks"] == [0, 1, 2, 3, 4, *range(6, 16)]
    assert shown["cause"] == {
        "rank": 3,
        "clock": "section",
        "name": "step",
        "age_s": 300.1,
        "limit_s": 300.0,
    }
    assert list(shown["ranks"]) == [str(rank) for rank in range(16)]
    assert shown["ranks"]["5"]["groups"] == [
        {"name": "0 gloo", "members": "0-15", "enqueued": 20, "completed": 20}
    ]
    assert shown["cost_s"] is None


def test_the_last_lines_of_stderr_are_evidence() -> None:
    """Of all ranks of this node for programs, of the culprit for people."""
    known = incident(stderr={5: ["a", "b", "c", "step 10"], 3: ["x"]})
    shown = to_json(known)["ranks"]

    assert (shown["5"]["stderr"], shown["3"]["stderr"]) == (["a", "b", "c", "step 10"], ["x"])
    assert shown["4"]["stderr"] is None, "it is another's, or a terminal's"
    assert "stderr      rank 5: b\n            rank 5: c\n            rank 5: step 10\n" in report(
        known
    )
