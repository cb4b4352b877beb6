"""Which of the exceptions on a rank's stderr has ended it, from streams as Python writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.evidence.pure.last_words import LastWords, first_and_last, of_error_file, read

TOP = [
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 9, in <module>',
    "    main()",
    '  File "/job/train.py", line 5, in main',
]
CAUGHT = [TOP[0], '  File "/job/data.py", line 3, in load', '    open("/x")']
REAL, OTHER = "ValueError: the real one", "FileNotFoundError: [Errno 2] No such file: '/x'"
ENDED_BY_REAL = {
    "nothing else": [*TOP, REAL],
    "an exit handler failed": [*TOP, REAL, "Exception ignored in atexit: <f>", *CAUGHT, OTHER],
    "a destructor failed": [*TOP, REAL, "Exception ignored in: <f>", *CAUGHT, OTHER],
    "logging failed": [*TOP, REAL, "--- Logging error ---", *CAUGHT, OTHER],
    "a thread failed before": ["Exception in thread Thread-1 (f):", *CAUGHT, OTHER, *TOP, REAL],
    "a thread failed after": [*TOP, REAL, "Exception in thread Thread-1 (f):", *CAUGHT, OTHER],
    "another was survived": [*CAUGHT, OTHER, "going on", *TOP, REAL],
    "a child failed before": [*TOP, OTHER, *TOP, REAL],
    "a warning follows": [*TOP, REAL, "[W1122 09:11:12 ProcessGroupNCCL.cpp:1496] Warning: x"],
    "a progress bar is before it": ["\r 10%|#   | 5/50" + TOP[0], *TOP[1:], REAL],
    "torch says the rank": [f"[rank3]: {line}" for line in (*TOP, REAL)],
    "colours": [*TOP, "\x1b[31mValueError\x1b[0m: the \x00real one"],
    "rich": [
        "╭─ Traceback (most recent call last) ─╮",
        "│ /job/train.py:5 in <module>",
        "╰─╯",
        REAL,
    ],
}


@pytest.mark.parametrize("lines", ENDED_BY_REAL.values(), ids=ENDED_BY_REAL)
def test_the_exception_that_ended_the_rank_is_found(lines: list[str]) -> None:
    """Whatever is written before and after it."""
    found = read(lines)

    assert (found.message, found.exception) == (REAL, "ValueError")
    assert found.place == "/job/train.py:5"
    assert found.is_final


@pytest.mark.parametrize(
    ("lines", "later", "expected"),
    [
        ([*CAUGHT, OTHER], ["step 10"], LastWords("step 10", "step 10")),
        ([*CAUGHT, OTHER], ["  100%|####| 50/50"], None),
        ([*CAUGHT, OTHER], [], None),
        ([*TOP, OTHER], ["wandb: 60 files uploaded"], None),
        (["Exception in thread Thread-1 (f):", *CAUGHT, OTHER], [], None),
        (["Exception in thread Thread-1 (f):", *CAUGHT, OTHER], ["on"], LastWords("on", "on")),
    ],
)
def test_an_exception_that_the_rank_survived_did_not_end_it(
    lines: list[str], later: list[str], expected: LastWords | None
) -> None:
    """It wrote more, a second later; its exit handlers may do that, too."""
    times = [*[1.0] * len(lines), *[2.0] * len(later)]
    found = read([*lines, *later], times, ended_at=3.0)

    if expected is None:
        assert (found.exception, found.began_at) == ("FileNotFoundError", 1.0)
    else:
        assert found == expected


@pytest.mark.parametrize(
    "ours",
    [
        "2026-11-22 10:35:08,098 [INFO] [n0] [rank 0] holdfast: rank 0 (pid 7) is monitored",
        "INFO:holdfast.fault_tolerance.rank_monitor_client:rank 0 (pid 7) is monitored",
        "[2026-11-22 10:35:08,098][holdfast.inprocess.wrap][WARNING] - call 2 begins",
        '{"logger": "holdfast.integrations.lightning", "level": "info", "message": "resumed"}',
    ],
    ids=["ours", "basicConfig", "hydra", "json"],
)
def test_what_holdfast_says_in_a_rank_is_not_its_last_word(ours: str) -> None:
    """A rank that leaves without a word has reported in as its last line; in any form."""
    assert read([ours], exit_code=3).message == ""
    assert read(["no data left", ours], exit_code=3).message == "no data left"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:holdfast.fault_tolerance.rank_monitor_client:rank 0 runs unwatched",
        "holdfast.inprocess.exception.HealthCheckError: no GPU",
        "cannot import holdfast_extras",
    ],
    ids=["error", "exception", "other"],
)
def test_an_error_of_holdfast_may_be_the_last_word(line: str) -> None:
    assert read([line], exit_code=3).message == line


def test_what_a_rank_wrote_long_before_its_end_is_not_about_it() -> None:
    assert read(["step 10"], [1.0], exit_code=3, ended_at=2.0).message == "step 10"
    assert read(["step 10"], [1.0], exit_code=3, ended_at=60.0) == LastWords()
    assert read(["bye", "x.py:3: UserWarning: y", "  warn()"], exit_code=3).message == "bye"


CHAINED = [
    *(*CAUGHT, OTHER, "", "The above exception was the direct cause of the following exception:"),
    *("", *TOP, "RuntimeError: no config"),
]
GROUP = [
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "/job/train.py", line 5, in <module>',
    '  |     raise ExceptionGroup("two", [])',
    "  | ExceptionGroup: two (2 sub-exceptions)",
    "  +-+---------------- 1 ----------------",
    "    | ValueError: a",
    "    +---------------- 2 ----------------",
    "    | Traceback (most recent call last):",
    '    |   File "/job/data.py", line 3, in load',
    "    | OSError: [Errno 28] No space left on device",
    "    +------------------------------------",
]


@pytest.mark.parametrize(
    ("lines", "name", "has"),
    [
        (CHAINED, "RuntimeError", "[Errno 2]"),
        (GROUP, "OSError", "ExceptionGroup: two"),
        ([*TOP, "HTTPFailure: 503"], "HTTPFailure", "503"),
        ([*TOP, "mine.Odd"], "Odd", "Odd"),
        ([*TOP, "RuntimeError: a", "", "  b", 'File "fake.py", line 3'], "RuntimeError", "b"),
    ],
)
def test_all_that_an_exception_says_is_read(lines: list[str], name: str, has: str) -> None:
    """What it was raised from, its parts, its further lines."""
    found = read(lines)

    assert found.exception == name
    assert has in found.text
    assert found.place in ("/job/train.py:5", "/job/data.py:3")


def test_the_stack_of_a_rank_that_died_in_native_code_has_the_place() -> None:
    """PYTHONFAULTHANDLER=1, innermost frame first."""
    lines = [
        *("Fatal Python error: Segmentation fault", ""),
        "Current thread 0x00007f (most recent call first):",
        '  File "/v/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/job/train.py", line 4 in step',
        '  File "/job/train.py", line 9 in <module>',
    ]

    found = read(lines, [5.0] * len(lines), exit_code=-11)
    assert (found.place, found.began_at) == ("/job/train.py:4", 5.0)


def test_a_wait_of_holdfast_for_the_script_is_at_a_place_of_the_script() -> None:
    """Also where holdfast runs from a checkout."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 4, in <module>',
        '  File "/v/site-packages/torch/distributed/rendezvous.py", line 198, in meet',
        '  File "/src/holdfast/watch/rank/store_wait.py", line 63, in _wait',
        "torch.distributed.DistNetworkError: The client socket has timed out",
    ]

    assert read(lines, [5.0] * len(lines), exit_code=1).place == "/job/train.py:4"


def test_an_error_file_of_a_loader_has_the_message_of_its_worker() -> None:
    error = f"KeyError: Caught KeyError in worker 0.\nOriginal {TOP[0]}\n{TOP[1]}\nKeyError: 'a'"

    assert of_error_file(error, "\n".join(TOP)).message == "KeyError: 'a'"


LINES = st.sampled_from([*TOP, *CAUGHT, REAL, *GROUP, *CHAINED, "", "  ", "Current thread x"])


@given(st.lists(LINES | st.text()), st.integers(-12, 3), st.booleans())
def test_whatever_the_lines_are_they_are_read(
    lines: list[str], exit_code: int, has_times: bool
) -> None:
    times = [float(at) for at in range(len(lines))] if has_times else []
    found = read(lines, times, exit_code=exit_code, ended_at=99.0)

    assert 0 <= found.end <= len(lines)


OWN = [
    "2026-11-26 08:00:00,1 [WARNING] [n0] [rank 1] holdfast: section 'x' is not configured",
    '{"time": "2026-11-26T08:00:00.100Z", "level": "WARNING", "node": "n0", "text": "section"}',
]


def _shown(lines: list[str]) -> list[str]:
    """As a launcher keeps them: the first four, and the last six."""
    return first_and_last(lines[:4], lines[-6:], len(lines), (2, 3))


def test_the_first_and_the_last_lines_are_shown_with_how_many_are_between() -> None:
    lines = [f"line {number}" for number in range(1240)]
    assert _shown(lines) == [
        *("line 0", "line 1", "... 1,235 lines between"),
        *("line 1237", "line 1238", "line 1239"),
    ]
    assert _shown(lines[:6])[2] == "... 1 line between"


@pytest.mark.parametrize("n", range(6))
def test_lines_that_are_not_more_than_both_are_shown_once(n: int) -> None:
    lines = [f"line {number}" for number in range(n)]
    assert _shown(lines) == lines


def test_blank_lines_holdfasts_own_and_bars_of_progress_take_no_place() -> None:
    """Errors of holdfast do: they may be why the rank ended."""
    bar = " 10%|#    | 1/10 [00:01<00:09]"
    first = [OWN[0], bar, "", "UserWarning: bad sampler"]
    error = OWN[0].replace("WARNING", "ERROR")
    last = ["step 1", *OWN, "step 2", error, ""]
    assert _shown([*first, *["x"] * 90, *last]) == [
        *("UserWarning: bad sampler", "... 90 lines between", "step 1", "step 2", error)
    ]
    assert _shown([*OWN, "", "step"]) == ["step"]
    assert _shown(OWN) == []
