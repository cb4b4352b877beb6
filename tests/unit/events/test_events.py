"""What a launcher writes a reader has again; whatever else a file holds costs that line alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import encode_fields
from holdfast.cli import main
from holdfast.events.event_log import EventLog
from holdfast.events.pure import schema
from holdfast.events.pure.event_files import order, part_name
from holdfast.events.pure.schema import KINDS, Event, event_of, fields_of
from holdfast.events.run.event_lines import files_of_events
from holdfast.tools.run.follower import Follower
from holdfast.tools.run.reader import NewerEventsError, read_file, read_folder
from tests.unit.made_events import HANG, THEN_WELL, event, progress, shown

HEAD = {"t": 1.5, "wall": 7.0, "node": "n0", "cycle": 3}
VALUES = {
    "bool": True,
    "Count": 1,
    "Instant": 2.5,
    "Raw": "caf\udce9",
    "Fitness": "unhealthy",
    "dict[str, RankProgress]": {"0": {"rank": 4, "open": {"a": 1.0}, "sections": {"b": [1] * 5}}},
    "dict[str, Raw]": {"torch": "2.13"},
    "float": 0.5,
    "int": 1,
    "str": "section",
    "tuple[Cause, ...]": [{"rank": 1, "kind": "EXCEPTION", "text": "boom"}],
    "tuple[Raw, ...]": ["a", "b"],
    "tuple[int, ...]": [0, 5],
}
"""A value of each type that a field of an event has, as a file has it."""


def whole(kind: str) -> dict[str, object]:
    """A line of this kind, every field of which is there."""
    types: dict[str, str] = {}
    for base in reversed(KINDS[kind].__mro__):
        types |= getattr(base, "__annotations__", {})
    fields = {name: VALUES[types[name].removesuffix(" | None")] for name in types}
    return {**HEAD, "kind": kind, **fields, "cycle": HEAD["cycle"]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_kind_is_read_and_written_again(kind: str) -> None:
    line = whole(kind)
    found = event_of(line)
    assert found is not None
    assert type(found.body) is KINDS[kind]
    again = json.loads(json.dumps(fields_of(found)))
    assert {key: again[key] for key in line if key != "ranks"} == {
        key: line[key] for key in line if key != "ranks"
    }
    assert event_of(again) == found


def test_a_launcher_writes_what_a_reader_has_again(tmp_path: Path) -> None:
    log, given = EventLog(tmp_path / schema.LAUNCHER_FILE, "n0"), []
    log.on_event = given.append
    for kind in KINDS:
        found = event_of(whole(kind))
        assert found is not None
        log.write(found.body, 3)
    log.close()

    events, n, bad = read_folder(tmp_path)
    assert (sorted(events, key=repr), n, bad) == (sorted(given, key=repr), len(KINDS), 0)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_field_of_a_wrong_type_is_as_one_that_is_missing(kind: str, data: st.DataObject) -> None:
    """One that every version has written makes the line none."""
    line = whole(kind)
    name = data.draw(st.sampled_from([*line]))
    broken = event_of({**line, name: {"not": float("nan")}})
    lacking = {key: line[key] for key in line if key != name}
    assert broken == event_of(lacking)
    needed = {"t", "kind", "cycle"} | {
        field for field in KINDS[kind].__match_args__ if not hasattr(KINDS[kind], field)
    }
    if name not in {"wall", "node"}:
        assert (broken is None) == (name in needed)


@pytest.mark.parametrize("line", ["", "[", "3", "{}", "\xff", "[" * 100_000, '{"t": NaN}'])
def test_a_line_that_is_no_event_is_counted(tmp_path: Path, line: str) -> None:
    """But for the last, which may be half written."""
    path = tmp_path / schema.LAUNCHER_FILE
    good = json.dumps(event(1.0, "joining"))
    path.write_bytes(f"{good}\n{line}\n{good}\n{good[:20]}".encode("latin-1"))
    events, n, bad = read_file(path)
    assert (len(events), n, bad) == (2, 2, 1)


def test_an_event_of_a_kind_that_is_not_known_is_one(tmp_path: Path) -> None:
    """A newer version has written it, or the training."""
    found = event_of(event(1.0, "new", field=[{}]))
    assert found == Event(1.0, 0, schema.OtherKind(), 1.0, "n0", "new")


def test_of_the_looks_at_pages_the_last_of_a_cycle_is_kept_and_that_at_a_verdict(
    tmp_path: Path,
) -> None:
    """A long run has gigabytes of them."""
    looks = [shown(cycle, 10.0 * k, {"0": progress()}) for cycle in (0, 1) for k in range(1, 9)]
    looks[3]["verdict"] = True
    path = tmp_path / schema.LAUNCHER_FILE
    path.write_text("".join(json.dumps(one) + "\n" for one in looks))
    events, n, bad = read_file(path)
    assert sorted((one.cycle, one.t) for one in events) == [(0, 40.0), (0, 80.0), (1, 80.0)]
    assert (n, bad) == (16, 0)


@pytest.mark.parametrize("command", ["report", "trace", "top", "view"])
def test_a_run_of_a_newer_schema_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    events = [{**HANG[0], "schema_version": schema.SCHEMA_VERSION + 1}, *HANG[1:], *THEN_WELL]
    (tmp_path / schema.LAUNCHER_FILE).write_text("".join(json.dumps(e) + "\n" for e in events))
    with pytest.raises(NewerEventsError, match="written by a newer holdfast"):
        read_folder(tmp_path)
    assert main([command, str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"its events have version {schema.SCHEMA_VERSION + 1}" in line


def test_a_launcher_says_which_schema_it_writes() -> None:
    """A file of before it said so is of the first."""
    assert schema.LauncherStarted().schema_version == 1
    assert "schema_version" in encode_fields(schema.LauncherStarted())


# ---------------------------------------------------------------------- parts


def test_a_file_of_events_that_has_grown_is_continued_in_a_next_one(tmp_path: Path) -> None:
    """Readers and followers have every event once, in order; a folder with 12 parts too."""
    log = EventLog(tmp_path / schema.LAUNCHER_FILE, "n0", part_bytes_max=1000)
    follower = Follower(tmp_path)
    followed: list[Event] = []
    for cycle in range(120):
        log.write(schema.CycleStopped(), cycle)
        if cycle % 7 == 0:
            followed += follower.fresh()
    log.close()
    followed += follower.fresh()

    parts = files_of_events(tmp_path)
    assert [part.name for part in parts[:2]] == [schema.LAUNCHER_FILE, "events-launcher.2.jsonl"]
    assert len(parts) > 10
    assert all(part.stat().st_size < 1200 for part in parts)
    assert [event.cycle for event in followed] == [*range(120)]
    events, n, bad = read_folder(tmp_path)
    assert ([event.cycle for event in events], n, bad) == ([*range(120)], 120, 0)


def test_a_part_that_cannot_be_made_leaves_the_events_in_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "events-launcher.2.jsonl").mkdir()
    log = EventLog(tmp_path / schema.LAUNCHER_FILE, "n0", part_bytes_max=100)
    for cycle in range(9):
        log.write(schema.CycleStopped(), cycle)
    log.close()
    events, n, _ = read_file(tmp_path / schema.LAUNCHER_FILE)
    assert ([event.cycle for event in events], n) == ([*range(9)], 9)


@given(st.lists(st.integers(1, 40), unique=True))
def test_parts_of_a_file_are_in_the_order_of_their_numbers(parts: list[int]) -> None:
    """Files that a training writes are in their own order."""
    names = [part_name(schema.LAUNCHER_FILE, part) for part in parts] + ["events-training.jsonl"]
    expected = [part_name(schema.LAUNCHER_FILE, part) for part in sorted(parts)]
    assert sorted(names, key=order) == [*expected, "events-training.jsonl"]
