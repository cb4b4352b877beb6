"""``holdfast explain``: from a line of the log to its meaning."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.tools.log_lines import EXPLANATIONS, found_in

DOCS = Path(__file__).parents[3] / "docs"
KILLED = (
    "[ERROR] holdfast: rank 1 (pid 7): killed by SIGKILL, not by holdfast; "
    "the kernel reports no out-of-memory kill"
)
STOPPED = "[WARNING] holdfast: stopped rank 0; restart {} of 3 in 0.03 s: cycle 1, pids 8,9"
ROWS = [row for rows in EXPLANATIONS.values() for row in rows]


def test_a_line_of_the_log_is_explained(capsys) -> None:
    assert main(["explain", KILLED]) == 0
    assert capsys.readouterr().out == (
        f"{KILLED}\n"
        "    a person, a scheduler or another program sent the signal (docs/what-is-killed.md)\n"
    )


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("waits for a lock in `f`; 1 other rank waits for it in `barrier`", "holds up the others"),
        ("is stopped; 15 other ranks wait for it in `all_reduce`", "holds up the others"),
        ("another rank was lost ([::1]:2969): exit code 1 at t.py:57", "is not the cause"),
        ("KeyError ('a'): exit code 1 at train.py:7", "the exception that the line names"),
        ("exit code 3", "or sys.exit"),
    ],
)
def test_the_lines_that_name_a_rank_are_explained(line: str, means: str) -> None:
    """They are read first."""
    assert means in next(found_in(f"rank 1 (pid 9, node vm) {line}")).meaning


def test_of_a_log_each_kind_of_line_is_explained_once(capsys, monkeypatch) -> None:
    """Lines that are not known are left out."""
    log = [STOPPED.format(1), "step 7 loss 2.4", STOPPED.format(2), KILLED]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(log)))
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if re.match(r"\S", line)] == [log[0], KILLED]


def test_a_line_that_no_explanation_fits_is_an_error(capsys) -> None:
    assert main(["explain", "loss 2.4"]) == 1
    assert "no line of the launcher's log is known" in capsys.readouterr().err


def test_a_log_may_have_bytes_of_another_encoding(capsys, monkeypatch) -> None:
    """Ranks write what they like."""
    log = io.BytesIO(b"caf\xe9\n" + KILLED.encode() + b"\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(log, encoding="utf-8", errors="strict"))
    assert main(["explain"]) == 0
    assert KILLED in capsys.readouterr().out


def test_a_restart_in_place_from_a_snapshot_is_no_bad_news() -> None:
    line = "iteration 1: all ranks begin from the snapshot of step 60"
    assert [row.phrases for row in found_in(line)] == [
        ("all ranks begin from the snapshot of step",)
    ]


def test_a_line_needs_no_quotes(capsys) -> None:
    assert main(["explain", "rank", "3", "is", "left", "alone"]) == 0
    assert capsys.readouterr().out.startswith("rank 3 is left alone\n")


def test_a_dash_stands_for_stdin_and_a_terminal_is_asked_for_a_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(KILLED))
    assert main(["explain", "-"]) == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main(["explain"]) == 2
    assert "which line?" in capsys.readouterr().err


def test_control_characters_of_a_line_do_not_reach_the_terminal(capsys) -> None:
    main(["explain", f"\x1b[31m{KILLED}"])
    assert "\x1b" not in capsys.readouterr().out


def test_the_longest_phrase_comes_first() -> None:
    """``restart ... of ...`` fits many lines."""
    line = "restart 1 of 3 in 2.1 s; no more warm standby: no memory"
    phrases = [row.phrases for row in found_in(line)]
    assert "no more warm standby" in phrases[0]
    assert len(phrases) > 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.phrases[0])
def test_a_page_of_an_explanation_is_there(row) -> None:
    """Its heading is checked when the site is built."""
    page = row.page.partition("#")[0]
    assert not page or (DOCS / page).is_file()


def test_no_phrase_is_explained_twice() -> None:
    phrases = [phrase for row in ROWS for phrase in row.phrases]
    assert len(phrases) > 100
    assert len(phrases) == len(set(phrases))
