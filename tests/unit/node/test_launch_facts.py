"""The facts of a start come from files, whatever these hold."""

import subprocess
from pathlib import Path

import pytest

from holdfast.events.event_log import EventLog
from holdfast.events.pure import schema
from holdfast.node.records.launch_facts import commit_of, launch_facts
from holdfast.tools.run.reader import events_in

_GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.com")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run([*_GIT, "-C", folder, *words], capture_output=True, check=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_the_commit_is_that_of_the_repository_around_a_folder(repository: Path) -> None:
    head = _git(repository, "rev-parse", "HEAD")
    inside = repository / "a" / "b"
    inside.mkdir(parents=True)
    assert commit_of(inside) == (head, "main")
    _git(repository, "pack-refs", "--all")
    assert commit_of(repository) == (head, "main")
    _git(repository, "worktree", "add", "-q", "-b", "other", "tree")
    assert commit_of(repository / "tree") == (head, "other")
    _git(repository, "checkout", "-q", "--detach")
    assert commit_of(repository) == (head, None)


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/none", "ref: ../../secret", "nonsense", "gitdir: elsewhere"]
)
def test_a_repository_that_is_not_understood_has_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    (tmp_path / "secret").write_text("hunter2")
    assert commit_of(tmp_path)[0] is None


def test_versions_are_read_without_importing(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    text = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(text)
    (tmp_path / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    words = ["/bin/ft_launcher", "train.py"]
    facts = launch_facts(words, {"NCCL_DEBUG": "INFO"}, ["/nowhere", str(tmp_path)])
    shown = {name: facts.versions[name] for name in ("torch", "CUDA", "NCCL")}
    assert shown == {"torch": "2.9.1+cu128", "CUDA": "12.8", "NCCL": "2.27.5"}
    assert "ROCm" not in facts.versions
    assert facts.command == ("ft_launcher", "train.py")
    assert facts.environment == {"NCCL_DEBUG": "INFO"}
    assert "torch" not in launch_facts([], {}, []).versions


def test_facts_that_cannot_be_made_cost_no_other_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / schema.LAUNCHER_FILE, "n0")
    log.write_late(schema.LaunchFacts, lambda: 1 / 0, 0)
    log.write_late(schema.LaunchFacts, lambda: schema.LaunchFacts(("ft_launcher",)), 0)
    log.write(schema.Joining(), 0)
    log.close()
    found = [event.body for event in events_in(tmp_path / schema.LAUNCHER_FILE)]
    assert found == [schema.LaunchFacts(("ft_launcher",)), schema.Joining()]
