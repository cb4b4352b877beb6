"""What a program hands to its own processes is read only if no other user can have written it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from holdfast.node.processes.function_rank import open_own, take


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder with a file of two objects."""
    private = tmp_path / "private"
    private.mkdir(0o700)
    (private / "objects").write_bytes(pickle.dumps("one") + pickle.dumps(2))
    return private


def test_objects_are_taken_in_order(folder: Path) -> None:
    with open_own(str(folder), "objects") as file:
        assert (take(file), take(file)) == ("one", 2)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755, 0o711])
def test_a_folder_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)

    with pytest.raises(PermissionError, match=rf"not a private folder .* mode {mode:o}"):
        open_own(str(folder), "objects")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    ("whose", "why"), [("", "not a private folder"), ("objects", "belongs to")]
)
def test_what_belongs_to_another_user_is_refused(folder: Path, whose: str, why: str) -> None:
    os.chown(folder / whose, 12345, -1)

    with pytest.raises(PermissionError, match=why):
        open_own(str(folder), "objects")


def test_links_are_not_followed(folder: Path) -> None:
    """Neither to a file nor to a folder."""
    (folder / "link").symlink_to(folder / "objects")
    folder.with_name("other").symlink_to(folder)

    with pytest.raises(OSError, match="symbolic"):
        open_own(str(folder), "link")
    with pytest.raises(OSError, match="other"):
        open_own(str(folder.with_name("other")), "objects")


def test_nothing_else_unpickles() -> None:
    """S-1: one module, and no socket or store leads to it."""
    root = Path(__file__).parents[3]
    sources = [*root.glob("src/**/*.py"), *root.glob("compat/src/**/*.py")]
    found = {
        path.name
        for path in sources
        if any(
            word in path.read_text("utf-8") for word in ("pickle.load", "Unpickler(", "marshal.")
        )
    }
    assert found == {"function_rank.py"}
