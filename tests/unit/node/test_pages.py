"""Where the pages of ranks go when there is no space for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.processes.pages import Pages
from holdfast.page.page import map_page


class Node:
    """Pages with a first and a spare folder; one that is not there takes no page."""

    def __init__(self, folder: Path) -> None:
        self.first, self.spare = folder / "shm", folder / "tmp"
        self.told: list[str] = []
        self.pages = Pages(str(self.first), self._make_spare, self.told.append)

    def _make_spare(self) -> str:
        self.spare.mkdir()
        return str(self.spare)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_page_is_in_the_first_folder(node: Node) -> None:
    """And nothing is said or made besides."""
    node.first.mkdir()

    path = node.pages.make(2, 1)

    assert path == f"{node.first}/c2_r1.page"
    assert not node.pages.is_spare(path)
    assert (node.told, node.spare.exists()) == ([], False)
    node.pages.remove(2, 1)
    assert not list(node.first.iterdir())


def test_without_space_there_it_is_in_the_spare_one(node: Node) -> None:
    """Said once per cycle; the next cycle tries the first folder again."""
    paths = [node.pages.make(0, local_rank) for local_rank in (0, 1)]
    node.first.mkdir()
    later = node.pages.make(1, 0)

    assert paths == [f"{node.spare}/c0_r{local_rank}.page" for local_rank in (0, 1)]
    map_page(paths[0] or "", writable=False).close()
    assert [node.pages.is_spare(path) for path in (*paths, later)] == [True, True, False]
    assert len(node.told) == 1
    assert "cycle 0: page" in node.told[0]
    assert str(node.spare) in node.told[0]
    node.pages.remove(0, 0)
    assert [path.name for path in node.spare.iterdir()] == ["c0_r1.page"]


def test_without_space_anywhere_a_rank_has_no_page(node: Node) -> None:
    """One error names both folders and what it means."""
    node.spare.touch()

    assert [node.pages.make(0, local_rank) for local_rank in (0, 1)] == [None, None]

    [text] = node.told
    assert "local rank 0 (and perhaps others) runs unwatched" in text
    assert str(node.first) in text
    assert str(node.spare) in text
    node.pages.remove(0, 0)
