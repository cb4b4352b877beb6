"""File systems that answer, that answer badly, and that never do."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from holdfast.base import clock, wait_for
from holdfast.base.processes import file_read
from holdfast.base.processes.proc import Process
from holdfast.health import storage
from holdfast.health.pure.health import Fitness
from holdfast.health.storage import Answer, PathLook, Places, Storage, Touch, network_mounts

HANGS = "import os, signal; os.write(3, b'r'); signal.pause()"
NEVER_BEGINS = "import signal; signal.pause()"
DIES = "import os; os.write(3, b'r'); os._exit(1)"
FAST = 0.05
"""Nothing of ours is as fast as that, and what hangs is late all the same."""

TABLE = r"""proc /proc proc rw 0 0
server:/home /home nfs4 rw,relatime,vers=4.2 0 0
10.0.0.1@o2ib:/fs /lustre\040scratch lustre rw 0 0
server:/old /mnt nfs rw 0 0
server:/old /mnt nfs rw 0 0
/dev/sda1 / ext4 rw 0 0
auto /net autofs rw 0 0
broken
"""


class Answers(PathLook):
    """Says what the test wants."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__()
        self._answers = answers

    def touch(self, touches):
        return {touch: self._answers.get(touch.path, Answer()) for touch in touches}


def places(tmp_path: Path, table: str = "", paths: tuple[str, ...] = ()) -> Places:
    mounts = tmp_path / "mounts"
    mounts.write_text(table)
    return Places(paths, str(mounts), (str(tmp_path / "health"), str(tmp_path / "health2")))


def verdicts(probe: Storage) -> dict[str, Fitness]:
    return {finding.subject: finding.verdict for finding in probe.look()}


# ---------------------------------------------------------------- what is looked at
def test_mounts_of_lustre_and_nfs_are_found_with_spaces_in_their_names() -> None:
    assert network_mounts(TABLE.splitlines()) == ["/home", "/lustre scratch", "/mnt"]


def test_where_there_is_nothing_nothing_is_said(tmp_path: Path) -> None:
    assert Storage(places(tmp_path)).look() == []


def test_a_table_of_mounts_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    probe = Storage(Places((), str(tmp_path / "nothing"), ()))
    assert verdicts(probe) == {"mounts": Fitness.UNKNOWN}


def test_more_mounts_than_can_be_looked_at_are_told(tmp_path: Path) -> None:
    table = "".join(f"s:/ /m{number} nfs rw 0 0\n" for number in range(70))
    found = verdicts(Storage(places(tmp_path, table), Answers({})))
    assert found.pop("mounts") is Fitness.UNKNOWN
    assert len(found) == storage.MAX_MOUNTS


# ---------------------------------------------------------------- what it means
LATE, STALE = Answer(is_late=True, text="late"), Answer(error=errno.ESTALE, text="Stale")
REFUSED, GONE = Answer(error=errno.EACCES, text="no"), Answer(error=errno.ENOENT, text="no such")
UNKNOWN = Answer(is_unknown=True, text="no process")


@pytest.mark.parametrize(
    ("answer", "mount", "path"),
    [
        (Answer(), Fitness.HEALTHY, Fitness.HEALTHY),
        (LATE, Fitness.UNHEALTHY, Fitness.UNHEALTHY),
        (STALE, Fitness.UNHEALTHY, Fitness.UNHEALTHY),
        (REFUSED, Fitness.HEALTHY, Fitness.UNKNOWN),
        (GONE, Fitness.UNKNOWN, Fitness.UNHEALTHY),
        (UNKNOWN, Fitness.UNKNOWN, Fitness.UNKNOWN),
    ],
)
def test_what_an_answer_means_for_a_mount_and_for_a_path(
    tmp_path: Path, answer: Answer, mount: Fitness, path: Fitness
) -> None:
    """A path that is named must be there; a mount may have been taken away meanwhile."""
    here = places(tmp_path, "s:/ /data nfs rw 0 0\n", ("/data",))
    probe = Storage(here, Answers({"/data": answer}))
    assert verdicts(probe) == {"mount /data": mount, "path /data": path}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("healthy\n", Fitness.HEALTHY),
        ("NOT HEALTHY\n", Fitness.UNHEALTHY),
        ("device OST3 reported unhealthy\nNOT HEALTHY\n", Fitness.UNHEALTHY),
        ("", Fitness.UNHEALTHY),
    ],
)
def test_lustre_must_call_itself_healthy_if_it_says_anything(
    tmp_path: Path, text: str, verdict: Fitness
) -> None:
    """Whichever of the two files this version has."""
    here = places(tmp_path)
    (tmp_path / "health2").write_text(text)
    [finding] = Storage(here).look()
    assert (finding.subject, finding.verdict) == ("Lustre", verdict)


@pytest.mark.parametrize("answer", [LATE, REFUSED, UNKNOWN])
def test_lustre_health_that_cannot_be_read_is_unknown(tmp_path: Path, answer: Answer) -> None:
    """If the file system hangs, its mounts say so."""
    here = places(tmp_path)
    (tmp_path / "health").touch()
    probe = Storage(here, Answers({str(tmp_path / "health"): answer}))
    assert verdicts(probe) == {"Lustre": Fitness.UNKNOWN}


# ---------------------------------------------------------------- real processes
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids of the processes that touch paths."""
    pids: list[int] = []
    real = file_read.start_bare

    def start(*arguments, **more) -> int:
        pids.append(real(*arguments, **more))
        return pids[-1]

    monkeypatch.setattr(file_read, "start_bare", start)
    return pids


def await_end(pids: list[int]) -> None:
    """Those that were told to end do."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # reaped
            process = Process(pid)
            assert wait_for.readable(process.fileno(), 30.0)
            process.close()
            os.waitpid(pid, 0)


def test_files_and_folders_are_touched_each_in_its_process(
    tmp_path: Path, started: list[int]
) -> None:
    folder, file, gone = tmp_path / "f ö'\udcff", tmp_path / "file", tmp_path / "gone"
    folder.mkdir()
    file.write_text("text")
    touches = [Touch(str(path), 30.0) for path in (folder, file, gone)]
    reads = Touch(str(file), 30.0, reads=True)
    answers = PathLook().touch([*touches, reads])
    assert [answers[touch].error for touch in touches] == [None, None, errno.ENOENT]
    assert answers[reads].text == "text"
    for pid in started:
        with pytest.raises(ChildProcessError):  # none is left behind
            os.waitpid(pid, os.WNOHANG)


def test_paths_that_are_reachable_and_not_are_told_apart(tmp_path: Path) -> None:
    paths = (str(tmp_path), str(tmp_path / "gone"), str(tmp_path))
    found = verdicts(Storage(places(tmp_path, paths=paths)))
    assert found == {
        f"path {tmp_path}": Fitness.HEALTHY,
        f"path {tmp_path / 'gone'}": Fitness.UNHEALTHY,
    }


def test_a_path_that_hangs_is_left_alone_and_looked_at_again_when_its_process_is_gone(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    """As in state D, where SIGKILL does nothing: here, it is not sent."""
    hung: list[int] = []
    monkeypatch.setattr(file_read, "_BOOT", HANGS)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, _: hung.append(pid))
        look = PathLook()
        touch = Touch("/data", FAST)
        assert look.touch([touch])[touch].is_late
        again = look.touch([touch])[touch]
    assert again.is_late
    assert str(hung[0]) in again.text
    assert len(hung) == 1, "one process per path, however often it is asked for"

    process = Process(hung[0])
    process.send(9)
    assert wait_for.readable(process.fileno(), 30.0)
    process.close()
    assert look.touch([touch])[touch].text == "no answer within 0.05 s"
    assert len(started) == 2
    await_end(started)


def test_paths_that_hang_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    """In the time of the slowest, not of all."""
    touches = [Touch(f"/{number}", 1.0) for number in range(24)]
    monkeypatch.setattr(file_read, "_BOOT", HANGS)
    look = PathLook()
    began_at = clock.monotonic()
    answers = look.touch(touches)
    took_s = clock.monotonic() - began_at
    assert all(answer.is_late for answer in answers.values())
    assert took_s < 24 * 1.0
    await_end(started)


def test_a_slow_start_and_a_death_say_nothing_about_the_path(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    touch = Touch("/data", 30.0)
    with monkeypatch.context() as patched:
        patched.setattr(file_read, "START_S", FAST)
        patched.setattr(file_read, "_BOOT", NEVER_BEGINS)
        assert "did not begin" in PathLook().touch([touch])[touch].text
    monkeypatch.setattr(file_read, "_BOOT", DIES)
    answer = PathLook().touch([touch])[touch]
    assert answer == Answer(text="the process that touched it died", is_unknown=True)

    def refuses(*_, **__):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(file_read, "start_bare", refuses)
    assert "no more processes" in PathLook().touch([touch])[touch].text
    await_end(started)
