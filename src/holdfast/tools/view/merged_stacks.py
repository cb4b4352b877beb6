"""The stacks of many ranks as one tree: where most of them are, and which one is elsewhere. Pure.

    4 ranks: 3 in all_reduce, 1 in load_batch

    3 of 4  <module> train.py:14    ranks 0, 1, 3
              train_step train.py:9
                all_reduce
    1 of 4  <module> train.py:13    rank 2
              load_batch data.py:88

Of each rank the thread that trains is shown, and of its frames those of the user's code and the
library's function that is called there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.base.pure.wording import count
from holdfast.events.run.run_words import named
from holdfast.evidence.pure import stacks

_MODULE = "<module>"


def _path(dump: str) -> list[str]:
    """Frames from the outermost to the innermost, each as text; empty: the dump has none."""
    frames = _training_frames(dump)
    place = stacks.place_of(frames)
    path = [str(frame) for frame in reversed(frames) if not frame.is_library]
    return [*(path or [place.line]), *([place.call] if place.call else [])] if frames else []


def _training_frames(dump: str) -> list[stacks.Frame]:
    threads = stacks.without_helpers(stacks.threads(dump))
    return threads[stacks.training_thread(threads)] if threads else []


def _function(dump: str) -> str:
    """The collective, or the library's function that the main program calls; else the user's."""
    place = stacks.place_of(_training_frames(dump))
    function = place.line.partition(" ")[0]
    is_call = place.is_in_collective or place.is_in_loader or function == _MODULE
    return place.call if place.call and is_call else function


def merged(dumps: Mapping[int, str]) -> str:
    """The stacks of these ranks as text; of one without stacks, its text is the reason."""
    paths = {rank: _path(dump) for rank, dump in dumps.items()}
    shown = sorted(rank for rank, path in paths.items() if path)
    places = Counter(_function(dumps[rank]) for rank in shown)
    lines = []
    if shown:
        summary = ", ".join(f"{n} in {place}" for place, n in places.most_common())
        lines += [f"{count(len(shown), 'rank')}: {summary}", ""]
        lines += _branches({rank: paths[rank] for rank in shown}, 0, len(shown))
    reasons: dict[str, list[int]] = {}
    for rank in sorted(set(dumps) - set(shown)):
        reason = dumps[rank].strip().removeprefix("(").removesuffix(")")
        reasons.setdefault(reason.replace(f"rank {rank} ", "", 1), []).append(rank)
    lines += ["", *(f"{named(ranks)}: {reason}" for reason, ranks in reasons.items())] * bool(
        reasons
    )
    return "\n".join(lines).strip()


def _branches(paths: Mapping[int, Sequence[str]], depth: int, total: int) -> list[str]:
    """Lines of a node's children, the one with most ranks first."""
    children: dict[str, dict[int, Sequence[str]]] = {}
    for rank, path in paths.items():
        if depth < len(path):
            children.setdefault(path[depth], {})[rank] = path
    lines = []
    for frame, below in sorted(children.items(), key=lambda one: (-len(one[1]), min(one[1]))):
        is_fork = depth == 0 or len(below) < len(paths)
        head = f"{len(below)} of {total}" if is_fork else ""
        ranks = f"    {named(below)}" if is_fork else ""
        lines.append(f"{head:<{2 * len(str(total)) + 6}}{'  ' * depth}{frame}{ranks}")
        lines += _branches(below, depth + 1, total)
    return lines
