"""Events of made-up jobs, as launchers write them."""

import math
import random

from holdfast.events.pure.schema import Event, event_of

_REST = {
    "rank_overdue": {"pid": 7, "learned": False, "clock": "section", "name": "step"}
    | {"age_s": 30.0, "limit_s": 30.0},
    "evidence": {"pid": 7, "stacks": None, "incident": None, "took_s": 0.1, "why_not": None},
    "kill_sent": {"pid": 7, "why": "hung"},
    "restarted_in_place": {"call": 1, "causes": []},
    "finding": {"probe": "gpu", "subject": "GPU 0"},
}
"""Fields that these kinds must have."""


def event(t, kind, cycle=0, **fields):
    head = {"t": t, "wall": t, "kind": kind, "node": "n0", "cycle": cycle}
    rest = dict(_REST.get(kind, {}))
    if kind == "rank_overdue":
        rest |= {"detected_at": t, "at": fields.get("detected_at", t)}
    elif kind == "restarted_in_place":
        rest |= dict.fromkeys(
            ("progress_at", "noticed_at", "entered_at"), fields.get("entered_at", t)
        )
    return {**head, **rest, **fields}


def typed(events: list[dict[str, object]]) -> list[Event]:
    """As a reader has them: of what is no event there is nothing."""
    found = [(one.get("launcher", 0), event_of(one)) for one in events]
    return [Event(**{**vars(one), "launcher": n}) for n, one in found if one is not None]


def of_rank(t, kind, cycle, local_rank, **fields):
    return event(t, kind, cycle, local_rank=local_rank, rank=local_rank, **fields)


def shown(cycle, t, ranks, *, final=True):
    named = {key: {"rank": int(key), **told} for key, told in ranks.items()}
    return event(t, "progress", cycle, ranks=named, final=final)


def progress(opened=None, ended=None, **fields):
    empty = dict.fromkeys(("heartbeat_at", "first_heartbeat_at", "left_at", "outside_since"))
    return {**empty, "iteration": None, "open": opened or {}, "sections": ended or {}, **fields}


NAMES = ["setup", "step", "checkpoint", "eval"]
OVERDUE = {"clock": "section", "name": "step", "age_s": 30.0, "limit_s": 30.0}
# Two ranks. Cycle 0: steps from 10, a checkpoint until 40, a hang at 50 that is found at 80.
HANG = [
    event(0.0, "launcher_started"),
    event(1.0, "cycle_started"),
    of_rank(2.0, "worker_started", 0, 0),
    of_rank(2.0, "worker_started", 0, 1),
    of_rank(6.0, "rank_armed", 0, 0, armed_at=6.0, sections=NAMES),
    of_rank(6.0, "rank_armed", 0, 1, armed_at=6.0, sections=NAMES),
    of_rank(80.5, "rank_overdue", 0, 1, detected_at=80.0, **OVERDUE),
    event(80.6, "cycle_stopping", 0),
    of_rank(81.0, "worker_exited", 0, 0, exit_code=-15),
    of_rank(81.0, "worker_exited", 0, 1, exit_code=-9),
    event(82.0, "cycle_stopped"),
    event(83.0, "cycle_started", 1),
    of_rank(84.0, "worker_started", 1, 0),
    of_rank(84.0, "worker_started", 1, 1),
    shown(
        0,
        85.0,
        {
            str(k): progress(
                {"step": 50.0},
                {"step": [30, 30.0, 1.5, 10.0, 50.0], "checkpoint": [1, 5.0, 5.0, 35.0, 40.0]},
            )
            for k in (0, 1)
        },
    ),
    of_rank(88.0, "rank_armed", 1, 0, armed_at=88.0, sections=NAMES),
    of_rank(88.0, "rank_armed", 1, 1, armed_at=88.0, sections=NAMES),
]
THEN_WELL = [
    *(of_rank(131.0, "worker_exited", 1, k, exit_code=0) for k in (0, 1)),
    event(132.0, "cycle_stopped", 1),
    shown(
        1,
        132.0,
        {
            str(k): progress(None, {"step": [30, 30.0, 1.0, 90.0, 130.0]}, left_at=130.0)
            for k in (0, 1)
        },
    ),
    event(132.0, "job_succeeded", 1),
]


_INSTANTS = ("t", "detected_at", "at", "armed_at", "began_at", "entered_at", "noticed_at")
_OF_RANK = ("heartbeat_at", "first_heartbeat_at", "left_at", "outside_since")


def elsewhere(one, node, monotonic_s, wall_s):
    """The same event, of a host with other clocks."""
    moved = {key: one[key] + monotonic_s for key in _INSTANTS if one.get(key) is not None}
    moved |= {"node": node, "wall": one["wall"] + wall_s}
    if "job" in one:
        moved["job"] = f"1-1-0-0-{node}-0"
    if one["kind"] == "progress":
        moved["ranks"] = {
            k: _shown_elsewhere(told, monotonic_s) for k, told in one["ranks"].items()
        }
    return {**one, **moved}


def _shown_elsewhere(told, by_s):
    ended = {
        k: [n, s, most, a + by_s, b + by_s] for k, (n, s, most, a, b) in told["sections"].items()
    }
    opened = {name: at + by_s for name, at in told["open"].items()}
    signs = {key: told[key] + by_s for key in _OF_RANK if told.get(key) is not None}
    return {**told, **signs, "open": opened, "sections": ended}


def made_up(seed: int) -> list[dict[str, object]]:
    """Events of a job that may be cut, torn, out of order in its marks, and senseless."""
    rng = random.Random(seed)
    t, events = 1000.0, [event(1000.0, "launcher_started")]

    def wait(most=30.0):
        nonlocal t
        t += rng.choice((0.0, rng.uniform(0, most)))
        return t

    # One value that is none makes a whole look pass for no event.
    is_sane = rng.random() < 0.5

    def instant():
        if is_sane:
            return rng.uniform(1000, t + 20)
        return rng.choice((None, math.nan, -1.0, "x", rng.uniform(900, t + 50), rng.uniform(0, t)))

    def ended():
        return [rng.randint(0, 9), rng.choice((rng.uniform(0, 99), 1e9)), 1.0, instant(), instant()]

    ranks = range(rng.randint(1, 3))
    for cycle in range(rng.randint(0, 5)):
        if rng.random() < 0.5:
            events.append(event(wait(), "joining", cycle))
        events.append(event(wait(), "cycle_started", cycle))
        kinds = ["worker_started", "rank_armed", "rank_overdue", "worker_exited"]
        events += [
            of_rank(
                wait(),
                kind,
                cycle,
                k,
                exit_code=rng.choice((0, 1, -9)),
                armed_at=instant(),
                detected_at=instant(),
                sections=rng.choice((NAMES, [])),
            )
            for kind in kinds
            for k in ranks
            if rng.random() < 0.7
        ]
        for k in ranks:
            if rng.random() < 0.4:
                took = {"took_s": rng.choice((None, -1.0, "x", rng.uniform(0, 40)))}
                events.append(event(wait(3.0), "evidence", cycle, rank=k, **took))
            if rng.random() < 0.4:
                signals = {"signal": rng.choice((9, 15)), "local_rank": k}
                events.append(event(wait(3.0), "kill_sent", cycle, rank=k, **signals))
        if rng.random() < 0.4:
            events.append(event(wait(3.0), "incident", cycle, reason="?", incident=1))
        for call in range(rng.randint(0, 2)):
            times = {f"{name}_at": instant() for name in ("progress", "noticed", "entered")}
            if rng.random() < 0.5:
                times = dict(zip(times, sorted(wait(3.0) for _ in times), strict=True))
            causes = [{"rank": 0, "kind": "EXCEPTION", "text": "?"}]
            events.append(event(t, "restarted_in_place", cycle, call=call, causes=causes, **times))
        if rng.random() < 0.6:
            stop = {"cause": "?", "restart": rng.choice((True, False, None, 3))}
            stop["silent_s"] = rng.choice((0.0, 15.0, 1e9, -1.0, None, "x"))
            events.append(event(wait(), "cycle_stopping", cycle, **stop))
        told = {
            str(k): progress(
                {name: instant() for name in NAMES if rng.random() < 0.2},
                {name: ended() for name in NAMES if rng.random() < 0.5},
                left_at=instant(),
                heartbeat_at=instant(),
                first_heartbeat_at=instant(),
                outside_since=instant(),
            )
            for k in ranks
        }
        events.append(shown(cycle, wait(), told, final=rng.random() < 0.7))
        if rng.random() < 0.8:
            events.append(event(wait(), "cycle_stopped", cycle))
    if rng.random() < 0.5:
        events.append(event(wait(), "job_failed"))
    kept = [one for one in events if rng.random() < 0.95]
    for one in rng.sample(kept, len(kept) // 20):
        one.pop(rng.choice(list(one)))
    return kept


# The same job with snapshots of each step of one second: the second cycle begins from the last.
TAKEN = {"taken": 30, "skipped": 0, "seconds": 0.3, "step_s": 1.0, "step": 30, "last_step": 31}
WITH_SNAPSHOTS = sorted(
    [
        *HANG,
        event(7.0, "snapshots_on", 0, n_slots=2, slot_bytes=1 << 20, bytes_max=4 << 20),
        event(82.0, "snapshots_taken", 0, every=1, at=49.0, **TAKEN),
        event(84.1, "snapshot_restored", 1, step=30, of_cycle=0, lost_steps=1, why=""),
        *THEN_WELL,
    ],
    key=lambda one: one["t"],
)
