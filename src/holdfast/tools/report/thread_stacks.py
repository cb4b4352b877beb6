"""The stacks of a rank, ordered for a reader: the main thread first, holdfast's own threads last.

Pure. In each thread the user's frames are marked: in a stack of twenty frames they are the few that
its reader can change.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.pure.value import Value
from holdfast.evidence.pure import stacks
from holdfast.evidence.pure.stacks import Frame

_SHOWN = 6
"""Frames of the user's in one line."""


class ThreadStack(Value):
    """One thread of a rank.

    Attributes:
        name: For people.
        frames: The innermost first.
        is_holdfasts: Holdfast has started it, and it runs nothing of the user's.
    """

    name: str
    frames: tuple[Frame, ...]
    is_holdfasts: bool = False

    @property
    def path(self) -> str:
        """``load_batch data.py:88 < train train.py:27``: the user's frames, the innermost first.

        The function of a library that they call comes before them.
        """
        return path_of(self.frames)


def threads_in(dump: str) -> list[ThreadStack]:
    """Those of a dump of faulthandler's, which has the main thread last."""
    found = [frames for frames in stacks.threads(dump) if frames]
    if not found:
        return []
    main, *others = reversed(found)
    named = [
        ThreadStack(f"thread {number}", tuple(frames), _is_holdfasts(frames))
        for number, frames in enumerate(others, 2)
    ]
    in_order = sorted(named, key=lambda one: (one.is_holdfasts, not _has_users(one.frames)))
    return [ThreadStack("main thread", tuple(main)), *in_order]


def _has_users(frames: Sequence[Frame]) -> bool:
    return any(not frame.is_library for frame in frames)


def _is_holdfasts(frames: Sequence[Frame]) -> bool:
    return not _has_users(frames) and any(frame.is_holdfasts for frame in frames)


def users_frame(dump: str) -> Frame | None:
    """The innermost frame of the user's in the main thread; None: it has none."""
    frames = stacks.main_thread(dump)
    return next((frame for frame in frames if not frame.is_library), None)


def path_of(frames: Sequence[Frame]) -> str:
    """See :attr:`ThreadStack.path`."""
    own = [at for at, frame in enumerate(frames) if not frame.is_library]
    if not own:
        return str(frames[0]) if frames else ""
    called = [call] if (call := stacks.place_of(frames).call) else []
    shown = [str(frames[at]) for at in own]
    if len(shown) > _SHOWN:
        shown = [*shown[: _SHOWN - 1], f"{len(shown) - _SHOWN} more", shown[-1]]
    return " < ".join([*called, *shown])
