"""Lines of an incident on the launcher's console. Pure.

    ... [ERROR] [gpu-07] holdfast: rank 5 (pid 47, node gpu-07) waits for a lock in `load` data.py:8
    ... [ERROR] [gpu-07] holdfast:   incident 1 of cycle 0, evidence of 16 of 16 ranks: /runs/7/...
    ... [WARNING] [gpu-07] holdfast: killed ranks 0-15 (section 'step': 60.0 s, timeout 60 s);
    restart 1 of 3 in 0.13 s: cycle 1, 16 ranks from warm standby, pids 31-46      (one line)

An incident is two lines of at most :data:`LINE_CHARS`, with date, level and node: the culprit, its
code and the ranks that wait; then the signals that were sent, and the restart. The path between
them is as long as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.pure.rank_sets import named, text_of
from holdfast.base.pure.wording import count, duration
from holdfast.evidence.pure.failure import RankEnd, first_cause
from holdfast.job.pure.membership import Round

TEXT_FORMAT = "%(asctime)s [%(levelname)s] [%(node)s] holdfast: %(message)s"
LINE_CHARS = 200
_DATE_AND_LEVEL = len("2026-01-31 23:59:59,999 [WARNING] [] holdfast: ")
_LEAST_CHARS = 100
"""Of a message, whatever the name of the node."""
_CUT = "..."


def room_on(node: str) -> int:
    """Characters that a message may have on the console of this node."""
    return max(_LEAST_CHARS, LINE_CHARS - _DATE_AND_LEVEL - len(node))


def fitted(text: str, room: int, tail: str = "") -> str:
    """``text`` and ``tail`` in so many characters: the end of the text goes first, by words."""
    if len(text) + len(tail) <= room:
        return text + tail
    room -= len(tail)
    if room < _LEAST_CHARS // 2:
        return fitted(text, room + len(tail))
    kept = text[: room - len(_CUT)]
    whole_words = kept.rpartition(" ")[0]
    return (whole_words if len(whole_words) > room // 2 else kept) + _CUT + tail


def cause_lines(cause: str, advice: str, room: int) -> list[str]:
    """The failure of a rank and the advice, which has a line of its own if it needs one."""
    if not advice or len(cause) + len(advice) + len(". Advice: ") <= room:
        return [fitted(f"{cause}. Advice: {advice}" if advice else cause, room)]
    return [fitted(cause, room), fitted(f"  Advice: {advice}", room)]


def done_line(ends: Sequence[RankEnd], proof: str = "") -> str:
    """``killed ranks 0-2 (section 'step': 3.0 s, timeout 3 s)``: of a cycle, by holdfast.

    Then the ranks that failed after the first one. Empty: all ended by themselves at once.
    ``proof``: of a hang without a timeout that the user chose; it is shown in the timeout's place.
    """
    cause = first_cause(ends)
    hung = [end for end in ends if end.hang is not None and end.is_condemned]
    asked = [end for end in ends if end.asked and end not in hung]
    killed = [end for end in asked if end.exit_code == -9]
    stopped = [end for end in asked if end not in killed and not end.is_stuck]
    failed = [end for end in ends if end.failed and end not in hung and end is not cause]
    parts = []
    if hung:
        first = min(hung, key=lambda end: end.began_at)
        verb = "killed" if any(end.exit_code < 0 for end in hung) else "stopped"
        parts.append(f"{verb} {_ranks(hung)} ({proof or first.hang})")
    if stopped:
        parts.append(f"stopped {_ranks(stopped)}")
    if killed:
        parts.append(f"killed {_ranks(killed)}")
    if failed:
        parts.append(f"{_ranks(failed)} failed because of it")
    return ", ".join(parts)


def _ranks(ends: Sequence[RankEnd]) -> str:
    return named([end.rank for end in ends])


def restart_words(used: int, most: int, window_s: float | None = None) -> str:
    """``restart 1 of 3``, ``restart 3 of 3 (the last)``."""
    within = "" if window_s is None else f" within {duration(window_s)}"
    return f"restart {used} of {most}{f' (the last{within})' if used >= most else ''}"


def restart_line(done: str, restart: str, after_s: float, started: str, room: int) -> str:
    """The end of ranks, and the restart that came of it.

    ``started``: the cycle, and :func:`started_words`.
    """
    line = f"{restart} in {after_s:.2f} s: "
    shown = fitted(f"{done}; ", max(0, room - len(line) - len("cycle 1000"))) if done else ""
    return fitted(shown + line + started, room)


def beginning_words(formed: Round) -> str:
    """`` from step 41 (2 steps again)``; empty: from no snapshot of as many ranks."""
    restore = None if formed.beginning is None else formed.beginning.restore
    if restore is None or restore.world_size != formed.world_size:
        return ""
    lost = restore.lost_steps
    again = f" ({count(lost, 'step')} again)" if lost > 0 else ""
    return f" from step {restore.snapshot.step}{again}"


def started_words(pids: Sequence[int], n_warm: int) -> str:
    """``, 3 ranks from warm standby, pids 31-33``."""
    warm = f", {count(n_warm, 'rank')} from warm standby" if n_warm else ""
    return f"{warm}, {'pid' if len(pids) == 1 else 'pids'} {text_of(pids)}"
