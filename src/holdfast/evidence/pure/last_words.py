"""Last words of a rank: the exception that ended it, or its last line. Pure.

A rank's stderr also holds exceptions that did not end it: of a thread, of an exit handler or a
destructor, which come after the one that did, and those that the program caught, wrote and
survived. Rules, for lines and the instants at which they came:

- What Python ignores ("Exception ignored in ...") ends no program. A thread's exception counts
  where there is no other.
- An exception that went through ``<module>`` has ended the program, whatever it wrote afterwards:
  its exit handlers write, too. Python exits with 1 then.
- Of any other one the program knew. It has survived it if it wrote lines later; the last of these
  is its last word then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.base.pure.value import Value
from holdfast.evidence.pure.own_code import OWN_CODE

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""Prefix of each line by torch's excepthook, once there is a process group."""
_UNSHOWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_BAR = re.compile(r"^ +(?:\+-[-+].*|[|+] ?)")
"""Before the lines of an exception group, and between its parts."""
_GROUP = re.compile(r"^ +\+ Exception Group Traceback")
_HEAD = "Traceback (most recent call"
_IGNORED = (
    *("Exception ignored ", "Error in atexit", "Error in sys.excepthook", "--- Logging error"),
    "Exception in threading.excepthook",
)
_THREAD = "Exception in thread "
_LINK = ("The above exception was the direct cause", "During handling of the above exception")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?')
_RICH_FRAME = re.compile(r"│ (?P<file>\S+):(?P<line>\d+) in (?P<name>\S+)")
_BOX = ("╭", "│", "╰", "┌", "└", "┃", "┏", "┗")
_TOP = ("<module>", "_run_module_as_main", "_run_code")
_NAME = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: |:?$)")
_NAME_ENDS = ("Error", "error", "Exception", "Interrupt", "Exit", "Iteration", "Group")
_NOT_THE_USERS = (
    *("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>"),
    *OWN_CODE,
)
_OWN = re.compile(
    r"\[(?:DEBUG|INFO|WARNING)\] .*\] holdfast: "
    r'|^\{"time": "[^"]+", "level": "(?:DEBUG|INFO|WARNING)", "node": "'
)
"""Lines that a rank's holdfast logs, as text and as JSON."""
_BAR_OF_PROGRESS = re.compile(r"%\|.*\|")
_NOISE = re.compile(
    r"\w*Warning: |^\[[WI]\d{3,4} |^ |resource_tracker|^\*+$|^Setting OMP_NUM_THREADS"
    rf"|{_BAR_OF_PROGRESS.pattern}|{_OWN.pattern}"
    r"|^(?!.*\b(?:ERROR|CRITICAL)\b).*\bholdfast\.(?:fault_tolerance|inprocess|integrations)"
    r"(?:\.[a-z_]+)*(?![\w.])"
)
"""Warnings, progress bars, and lines of other programs or of holdfast, by the logger's name."""
_AT_ONCE_S = 0.2
"""Lines of one traceback come within this time."""
_SAID_LATELY_S = 10.0
"""A line older than this at the end of a rank does not tell of its end."""
_FATAL = "(most recent call first)"
"""How faulthandler begins a stack."""
_SIGABRT = 6
_ABORTED = ("terminate called", "Fatal Python error")


class LastWords(Value):
    """Last words of a rank.

    Attributes:
        text: The exception's message, with those of its causes, or the last line; for rules.
        message: First line of the exception's message, or the last line; for people.
        exception: Name of the exception, without its module; empty: there was none.
        place: ``file:line`` of the innermost frame of the user's code; empty: not known.
        began_at: When they came; None: not known, or there was no exception.
        is_final: The exception has ended the program: it was not caught.
        has_more: Lines came later, which are no warnings.
        end: Index behind its last line; 0: there was no exception.
    """

    text: str = ""
    message: str = ""
    exception: str = ""
    place: str = ""
    began_at: float | None = None
    is_final: bool = False
    has_more: bool = False
    end: int = 0


class _Traceback:
    """One exception, in lines."""

    def __init__(self, at: int, *, is_threads: bool, is_linked: bool) -> None:
        self.at = at
        self.is_threads = is_threads
        self.is_linked = is_linked
        """It belongs to the one before it."""
        self.frames: list[str] = []
        self.message: list[tuple[int, str]] = []

    def words(self) -> list[str]:
        return [text for _, text in self.message]


def plain(line: str) -> str:
    """A line of stderr without colours, and without torch's prefix."""
    return _RANK_PREFIX.sub("", _UNSHOWN.sub("", line)).rstrip()


def is_own(line: str) -> bool:
    """Holdfast logged it, as no error: reports show the lines of the rank's program."""
    return bool(_OWN.search(line))


def first_and_last(
    first: Sequence[str], last: Sequence[str], n_lines: int, most: tuple[int, int]
) -> list[str]:
    """The first and the last lines of a stderr, as a report shows them, and how many are between.

    Blank lines and holdfast's own are left out; of the first ones also bars of progress.

    Args:
        first: The beginning of it.
        last: The end of it, as far as it may be shown; the two may overlap.
        n_lines: How many lines it had, to the end of ``last``.
        most: How many of both to show.
    """
    begin = max(0, n_lines - len(last))
    n_first, n_last = most
    tail = [(begin + i, line) for i, line in enumerate(last) if _has_words(line)][-n_last:]
    ends = tail[0][0] if tail else n_lines
    head = [(i, line) for i, line in enumerate(first[:ends]) if _has_words(line)]
    head = [it for it in head if not _BAR_OF_PROGRESS.search(it[1])][:n_first]
    lines = [line for _, line in head]
    if head and tail:
        known = {**dict(enumerate(first)), **{begin + i: line for i, line in enumerate(last)}}
        inner = range(head[-1][0] + 1, ends)
        between = len(inner) - sum(i in inner and not _has_words(it) for i, it in known.items())
        if between:
            lines.append(f"... {between:,} {'line' if between == 1 else 'lines'} between")
    return [*lines, *(line for _, line in tail)]


def _has_words(line: str) -> bool:
    return bool(line.strip()) and not is_own(line)


def read(
    lines: Sequence[str],
    times: Sequence[float] = (),
    *,
    exit_code: int = 1,
    ended_at: float | None = None,
) -> LastWords:
    """The last words in the lines of a rank's stderr.

    Args:
        lines: The end of its stderr.
        times: When each of them came, monotonic seconds; empty: not known.
        exit_code: As of the process; -N: killed by signal N.
        ended_at: When it ended, on the same clock.
    """
    shown = [(at, text) for at, line in enumerate(lines) if (text := plain(line))]
    may_raise = exit_code > 0 or exit_code == -_SIGABRT
    last = _last(_tracebacks(shown), exit_code, times) if may_raise else []
    if last:
        return _of_tracebacks(last, exit_code, times)
    if exit_code < 0:  # native code writes lines of no fixed form
        began = [at for at, text in shown if text.startswith(_ABORTED)]
        began_at = times[began[0]] if began and times else None
        words = [text for _, text in shown]
        return LastWords("\n".join(words), "", name_of(words), _dumped_place(words), began_at)
    for at, text in reversed(shown):
        if times and ended_at is not None and times[at] < ended_at - _SAID_LATELY_S:
            break
        if not _NOISE.search(text):
            name = name_of([text])
            place = place_of([text for _, text in shown]) if name else ""
            return LastWords(text, text, name, place)
    return LastWords()


def of_error_file(error: str, traceback: str | None) -> LastWords:
    """The same, from a file that ``@record`` wrote."""
    lines = [line for each in error.splitlines() if (line := plain(each))] or [""]
    place = place_of(traceback.splitlines()) if traceback else ""
    inner = _tracebacks(list(enumerate(lines)))  # of a data loader's worker
    message = inner[-1].message[0][1] if inner else lines[0]
    return LastWords("\n".join(lines), message, name_of([message, *lines]), place, is_final=True)


def place_of(lines: Iterable[str]) -> str:
    """The innermost frame of the user's code: ``file:line``."""
    own = _own_frames(lines)
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""


def name_of(words: Sequence[str]) -> str:
    """Name of the exception in these lines, by its form alone."""
    for line in words:
        match = _NAME.match(line)
        name = match["name"].rpartition(".")[2] if match else ""
        if name.endswith(_NAME_ENDS):
            return name
    return ""


def _frame_in(line: str) -> re.Match[str] | None:
    return _FRAME.match(line) or _RICH_FRAME.search(line)


def _own_frames(lines: Iterable[str]) -> list[re.Match[str]]:
    frames = filter(None, map(_frame_in, lines))
    return [each for each in frames if not any(part in each["file"] for part in _NOT_THE_USERS)]


def _dumped_place(words: Sequence[str]) -> str:
    """From a stack that faulthandler wrote, innermost frame first, of the thread that failed."""
    heads = [i for i, text in enumerate(words) if text.startswith("Current thread ")]
    if not heads or _FATAL not in words[heads[0]]:
        return ""
    frames = words[heads[0] + 1 :]
    end = next((i for i, text in enumerate(frames) if not _FRAME.match(text)), len(frames))
    own = _own_frames(frames[:end])
    return f"{own[0]['file']}:{own[0]['line']}" if own else ""


def _tracebacks(shown: Sequence[tuple[int, str]]) -> list[_Traceback]:
    """All that ended something, in their order."""
    found: list[_Traceback] = []
    now: _Traceback | None = None
    before, is_group = "", False
    for at, text in shown:
        is_group = bool(_BAR.match(text)) if is_group else bool(_GROUP.match(text))
        line = _BAR.sub("", text, count=1) if is_group else text
        if _HEAD in line:
            is_part = is_group and not _GROUP.match(text)
            linked = before.startswith(_LINK) or line.startswith("Original ") or is_part
            now = _Traceback(at, is_threads=before.startswith(_THREAD), is_linked=linked)
            if not before.startswith(_IGNORED):
                found.append(now)
        elif now is not None and line:
            ends = line.startswith((*_IGNORED, _THREAD, *_LINK))
            is_frame = line.startswith((" ", "\t", *_BOX)) and not now.message
            if ends:
                now = None
            elif is_frame:
                now.frames.append(line)
            else:
                now.message.append((at, line))
        before = line or before
    return [each for each in found if each.message]


def _last(found: Sequence[_Traceback], exit_code: int, times: Sequence[float]) -> list[_Traceback]:
    """The one that ended the rank, after those that it was raised from; empty: none did."""
    of_main = [each for each in found if not each.is_threads]
    if not of_main and found and not _has_more(found[-1], times):
        return [found[-1]]
    while of_main:
        begin = len(of_main) - 1
        while begin and of_main[begin].is_linked:
            begin -= 1
        chain, of_main = of_main[begin:], of_main[:begin]
        is_final = _is_at_top(chain) and exit_code in (1, -_SIGABRT)
        if is_final or not _has_more(chain[-1], times):
            return chain
        break
    return []


def _is_at_top(chain: Sequence[_Traceback]) -> bool:
    frames = (_frame_in(line) for each in chain for line in each.frames[:4])
    return any(frame["name"] in _TOP for frame in frames if frame)


def _has_more(traceback: _Traceback, times: Sequence[float]) -> bool:
    """Lines came later, which are no warnings."""
    if not times:
        return False
    by = times[traceback.at] + _AT_ONCE_S
    return any(times[at] > by and not _NOISE.search(text) for at, text in traceback.message)


def _of_tracebacks(
    chain: Sequence[_Traceback], exit_code: int, times: Sequence[float]
) -> LastWords:
    last = chain[-1]
    by = times[last.at] + _AT_ONCE_S if times else 0.0
    said = [each for each in last.message if not times or times[each[0]] <= by] or last.message[:1]
    words = [text for _, text in said]
    inner = [text for each in reversed(chain[:-1]) for text in each.words()]
    head = _NAME.match(words[0])
    return LastWords(
        text="\n".join([*words, *inner]),
        message=words[0],
        exception=head["name"].rpartition(".")[2] if head else name_of(words),
        place=next(filter(None, (place_of(each.frames) for each in reversed(chain))), ""),
        began_at=times[last.at] if times else None,
        is_final=_is_at_top(chain) and exit_code == 1,
        has_more=_has_more(last, times),
        end=said[-1][0] + 1,
    )
