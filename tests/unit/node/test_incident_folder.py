"""The folder of an incident is written when it is judged, and again when more is known."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.evidence.pure.verdict import judge
from holdfast.evidence.staging import Staging
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.records.incidents import IncidentFolders
from holdfast.watch.pure import monitor_messages

BOUND_S = 30.0


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staged"), str(tmp_path / "run"))


@pytest.fixture
def folders(tmp_path: Path, staging: Staging) -> IncidentFolders:
    return IncidentFolders("n0", str(tmp_path / "run"), staging)


def over(number: int = 1, ranks: int = 1, **more: Any) -> IncidentOver:
    """Rank 0 is stopped, in cycle 0."""
    digests = {
        rank: RankDigest(rank, "n0", state="T" if not rank else "S") for rank in range(ranks)
    }
    about = {"cycle": 0, "overdue": (0,), "without": "", **more}
    return IncidentOver(number, verdict=judge(digests, {}), digests=digests, **about)


def overdue(cycle: int = 0) -> monitor_messages.Overdue:
    now = clock.monotonic()
    return monitor_messages.Overdue(cycle, 0, 0, 1, "heartbeat", None, 3.1, 3.0, False, now, now)


def written(tmp_path: Path, staging: Staging, name: str = "0001-cycle0") -> dict[str, Any]:
    assert staging.close(BOUND_S)
    folder = tmp_path / "run" / "incidents" / name
    assert (folder / "incident.txt").exists()
    found: dict[str, Any] = json.loads((folder / "incident.json").read_text())
    return found


def test_an_incident_is_a_line_and_the_path_of_a_folder(
    folders: IncidentFolders, staging: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often more evidence comes."""
    with caplog.at_level(logging.ERROR):
        folders.note(overdue())
        folders.over(over())
        folders.over(over())

    assert caplog.messages[0].startswith("rank 0 ")
    path = f"{tmp_path}/run/incidents/0001-cycle0"
    assert caplog.messages[1:] == [f"  incident 1 of cycle 0, evidence of 1 of 1 rank: {path}"]
    found = written(tmp_path, staging)
    assert (found["culprits"], found["cause"]["clock"]) == ([0], "heartbeat")


def test_an_incident_is_logged_once_per_job(
    folders: IncidentFolders, staging: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the node of the leader; the others say so in one line, and keep what their ranks show."""
    caplog.set_level("INFO", logger="holdfast")
    folders.over(IncidentOver(**{**vars(over()), "is_elsewhere": True}))

    [record] = caplog.records
    assert record.levelname == "INFO"
    assert "incident 1 of cycle 0 is in the log of the launcher that leads" in record.message
    assert f"{tmp_path}/run/incidents/0001-cycle0" in record.message
    assert written(tmp_path, staging)["culprits"] == [0]


def test_ranks_that_are_left_alone_are_a_warning_until_one_hangs(
    folders: IncidentFolders, staging: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In two lines and a path. Their evidence is kept: a person may know better, and is told."""
    hang = over()
    alone = IncidentOver(
        **{**vars(hang), "verdict": Verdict(reason="r", is_stall=True, why_alone="w")}
    )

    folders.over(alone)
    folders.over(alone)
    found = written(tmp_path, staging)
    folders.over(hang)

    assert [record.levelname for record in caplog.records] == [
        *3 * ["WARNING"],
        *2 * ["ERROR"],
    ]
    assert caplog.messages[0].endswith("is a stall: r")
    assert caplog.messages[1].strip().endswith("no rank is killed, because w")
    assert found["stall"] is True
    assert found["done"] == ["no rank is killed, because w"]


def test_a_pause_is_a_line_of_the_log_and_a_known_stall_is_none(
    folders: IncidentFolders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is where, and for whom the others wait."""
    caplog.set_level("INFO")
    for told in ({"is_pause": True}, {"is_stall": True, "is_known": True}):
        folders.over(IncidentOver(**{**vars(over()), "verdict": Verdict(reason="r", **told)}))

    [record] = caplog.records
    assert record.levelname == "INFO"
    assert "cycle 0: no optimizer step for " in record.message
    assert not [*tmp_path.rglob("incident.json")]


def test_a_rank_that_waited_for_the_culprit_is_not_called_hung(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    folders.note(overdue())
    folders.over(IncidentOver(**{**vars(over()), "verdict": Verdict((1,), reason="r")}))
    folders.note(monitor_messages.Signalled(0, 0, 1, 9, "hung"))
    folders.note(monitor_messages.Signalled(0, 1, 2, 9, "hung"))
    folders.note(monitor_messages.WatchBegan(1))

    done = written(tmp_path, staging)["done"]
    assert done[:2] == ["SIGKILL to rank 0: it waits for rank 1", "SIGKILL to rank 1: hung"]


def test_what_was_done_and_what_it_cost_is_added(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    """The cost counts from the last sign of life: all of the timeout is lost."""
    folders.note(overdue())
    folders.over(over())
    folders.note(monitor_messages.Signalled(0, 0, 1, 9, "hung"))
    folders.note(monitor_messages.WatchBegan(0))
    folders.note(monitor_messages.WatchBegan(1))
    folders.note(monitor_messages.WatchBegan(1))

    found = written(tmp_path, staging)
    assert found["done"] == ["SIGKILL to rank 0: hung", "cycle 1 was started"]
    assert found["cost_s"] >= 3.0


def test_the_next_incident_has_a_folder_and_a_cause_of_its_own(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    folders.note(overdue())
    folders.over(over())
    folders.over(over(2, cycle=1))

    assert written(tmp_path, staging, "0002-cycle1")["cause"] is None


def test_a_second_incident_of_a_cycle_has_a_cause_of_its_own_too(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    """A cycle survives one under min-healthy; a rank that is overdue late belongs to the first."""
    folders.note(overdue())
    folders.over(over())
    late = monitor_messages.Overdue(**{**vars(overdue()), "rank": 1})
    folders.note(late)
    folders.over(over())
    folders.note(monitor_messages.Overdue(**{**vars(overdue()), "rank": 2}))
    folders.over(over(2))

    assert written(tmp_path, staging, "0001-cycle0")["cause"]["rank"] == 0
    assert written(tmp_path, staging, "0002-cycle0")["cause"]["rank"] == 2


def test_digests_of_thousands_of_ranks_are_written_by_a_thread_and_waited_for_at_the_end(
    folders: IncidentFolders, staging: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The launcher goes on; the run folder has all of it, also where the job ends with it."""
    folders.over(over(ranks=600))
    for rank in range(8):
        folders.note(monitor_messages.Signalled(0, rank, 1, 9, "hung"))
    found = written(tmp_path, staging)
    assert (len(found["ranks"]), len(found["done"])) == (600, 8)
    assert not any("cannot write" in line for line in caplog.messages)


def test_the_node_that_notifies_people_says_so(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    """And it is not taken back when more evidence comes."""
    folders.over(over(notifies=True))
    folders.over(over())
    assert written(tmp_path, staging)["notifies"] is True


def test_a_folder_that_cannot_be_written_is_a_line_of_the_log(
    folders: IncidentFolders, staging: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(staging.folder(0)).parent.mkdir(parents=True)
    Path(staging.folder(0)).write_text("in the way")

    folders.over(over())

    assert "cannot write the incident to" in caplog.messages[-1]


def test_names_in_an_incident_do_not_reach_a_terminal_raw(
    folders: IncidentFolders, staging: Staging, tmp_path: Path
) -> None:
    """``cat incident.txt`` is what people do."""
    now = clock.monotonic()
    section = "section", "\x1b]0;evil\x07"
    folders.note(monitor_messages.Overdue(0, 0, 0, 1, *section, 3.1, 3.0, False, now, now))
    folders.over(over())
    assert written(tmp_path, staging)["cause"]["name"] == "\x1b]0;evil\x07"
    text = (tmp_path / "run/incidents/0001-cycle0/incident.txt").read_text()
    assert "evil" in text
    assert "\x1b" not in text
