"""Commands for people end with a line at most, wherever their output leads to."""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base import command_output
from holdfast.base.pure.printable import one_line, printable
from holdfast.cli import main
from holdfast.node.console import PumpHandler
from holdfast.tools.view.top import Stacks, Top
from holdfast.tools.view.words import as_text
from tests.unit.made_events import HANG, THEN_WELL
from tests.unit.tools.test_view import START, STARTED, run_folder
from tests.unit.tools.test_view import Job as ThreeRanks

EVIL = "a\x1b]0;evil\x07\x1b[2Jb\x9b31m\u202ec\n\r"
RAW = ("\x1b", "\x07", "\x9b", "\u202e", "\r")


@pytest.fixture
def run(tmp_path: Path) -> str:
    life = {"run_id": EVIL, "name": EVIL, "nproc": 2}
    lines = [json.dumps(each) for each in ({**HANG[0], **life}, *HANG[1:], *THEN_WELL)]
    folder = tmp_path / "logs" / "a run\u00e9"
    folder.mkdir(parents=True)
    (folder / "events-launcher.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def started(*words: str, stdout: int, **env: str) -> subprocess.Popen:
    """The command ``holdfast``, as a shell starts it."""
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.Popen(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    )


@pytest.mark.parametrize("words", [["report"], ["trace", "-o", "-"], ["top", "--json"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_line(run: str, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = started(*words, *[run] * (words != ["--help"]), stdout=full.fileno())
        _, told = command.communicate(timeout=60)
    assert (command.returncode, told) == (
        1,
        f"holdfast {words[0]}: error: stdout: No space left on device\n",
    )


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(run: str) -> None:
    """As in ``holdfast report --html - | head``."""
    reader, writer = os.pipe()
    os.close(reader)
    command = started("report", "--html", "-", run, stdout=writer)
    os.close(writer)
    assert command.communicate(timeout=60)[1] == ""
    assert command.returncode == 0


def test_ctrl_c_ends_a_command_quietly(run: str, monkeypatch, capsys) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.tools.command_words.resolve", interrupted)
    assert main(["report", run]) == command_output.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_terminal_that_lacks_a_character_gets_the_nearest(monkeypatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert command_output.guarded("x", lambda: out.write("█▏…\u00e9\udcff\n") and 0) == 0
    out.seek(0)
    assert out.read() == "#|...\\xe9\\udcff\n"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    """Lines and tabs stay, and letters of all languages."""
    assert printable("a\tb\nc\u00fc\u6f22\U0001f600") == "a\tb\nc\u00fc\u6f22\U0001f600"
    assert printable(EVIL) == "a\\x1b]0;evil\\x07\\x1b[2Jb\\x9b31m\\u202ec\n\\x0d"
    assert one_line("a\tb\nc") == "a\\tb\\nc"


def test_names_of_a_run_do_not_reach_a_terminal_raw(run: str, capsys) -> None:
    """In no command, nor in an error that names them."""
    folder = run.rpartition("/")[0]
    for words in (["report"], ["report", "--html", "-"], ["top", "--once"], ["top", EVIL]):
        main([*words, *[run] * (words[-1] != EVIL)])
    main(["runs", folder])
    main(["report", EVIL])
    shown = "".join(capsys.readouterr())
    assert "evil" in shown
    assert not [char for char in RAW if char in shown]


def test_top_shows_no_raw_control_characters(tmp_path: Path) -> None:
    """Textual writes what it is given."""
    reason = {"kind": "lock", "cycle": 0, "culprits": [4], "reason": EVIL}
    events = [{**START, "name": EVIL, "node": EVIL}, *STARTED]
    folder = run_folder(tmp_path / "a", *events, node=EVIL)
    path = folder / "incidents" / "0001-cycle0" / "incident.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(reason))
    from holdfast.tools.view.live import LiveJob

    job = LiveJob([folder])
    assert not [char for char in RAW if char in as_text(job.look())]

    class Evil(ThreeRanks):
        def look(self):
            return job.look()

        def stacks(self, ranks):
            return dict.fromkeys(ranks, EVIL)

    async def press() -> str:
        app = Top(Evil())
        async with app.run_test(size=(120, 30)) as pilot:
            shown = app.export_screenshot()
            await pilot.press("enter")
            assert isinstance(app.screen, Stacks)
            return shown + app.export_screenshot()

    import asyncio

    shown = asyncio.run(press())
    assert "evil" in shown
    assert not [char for char in RAW if char in shown]


def test_words_of_a_rank_do_not_reach_the_launcher_s_terminal_raw() -> None:
    """Its last lines of stderr are in the report of a failure."""
    written: list[bytes] = []

    class Pump:
        def write(self, descriptor: int, data: bytes) -> None:
            written.append(data)

    record = logging.LogRecord("holdfast", logging.ERROR, "", 0, "rank 1: %s", (EVIL,), None)
    PumpHandler(Pump(), 2, "n0").emit(record)  # type: ignore[arg-type]
    assert b"evil" in written[0]
    assert not [char for char in RAW if char in written[0].decode()]


# ------------------------------------------------------------------ files
@pytest.mark.parametrize("words", [["report", "--html"], ["trace", "-o"]])
def test_a_file_is_written_whole_or_not_at_all(run: str, tmp_path: Path, words) -> None:
    """The one of before stays where there is no room for another."""
    target = tmp_path / "out.gz"
    target.write_text("before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert main([*words, str(target), run]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert target.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["out.gz"]


def test_a_file_that_cannot_be_written_is_named(run: str, tmp_path: Path, capsys) -> None:
    for target, why in (("/", "Is a directory"), (f"{tmp_path}/no/x.gz", "No such file")):
        assert main(["trace", "-o", target, run]) == 1
        assert f"holdfast trace: error: {target}: {why}" in capsys.readouterr().err


@pytest.fixture
def nobody(tmp_path: Path):
    """We are a user who owns nothing here; where we are none that can become one, ourselves."""
    for folder in (*tmp_path.parents, tmp_path):
        if not folder.stat().st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_what_may_not_be_read_is_said(run: str, tmp_path: Path, capsys, nobody) -> None:
    """And a folder of somebody else in the temp folder, which holds many, is passed over."""
    uid = os.geteuid()
    os.seteuid(os.getuid())
    events = Path(run) / "events-launcher.jsonl"
    events.chmod(0)
    secret = tmp_path / "logs" / "secret"
    secret.mkdir(mode=0)
    os.seteuid(uid)
    for words in (["report"], ["top", "--once"], ["trace"], ["view"]):
        assert main([*words, run]) == 1
        assert f"error: {events}: Permission denied" in printable(capsys.readouterr().err)
        assert main([*words, str(secret)]) == 1
        assert f"error: {secret}: Permission denied" in printable(capsys.readouterr().err)
    assert main(["report", "absent"]) == 2
    assert main(["runs", str(tmp_path / "logs")]) == 0
    os.seteuid(os.getuid())
    secret.chmod(0o700)


def test_a_run_that_ends_while_runs_are_listed_is_left_out(run: str, monkeypatch, capsys) -> None:
    """A job that ends well removes its folder."""
    from holdfast.tools import runs

    monkeypatch.setattr(runs, "find_runs", lambda _: [Path("/gone"), Path(run)])
    assert main(["runs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
