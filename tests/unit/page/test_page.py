"""Making and mapping the page of a rank."""

import errno
import os
import stat

import pytest

from holdfast.page.page import PageError, anonymous_page, create_page, map_page, private_page
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import MainThreadMarks
from holdfast.page.pure.page_view import PageView


def test_what_the_rank_stores_is_seen_by_a_reader(tmp_path) -> None:
    """One writer, many readers, one file."""
    path = str(tmp_path / "c3_r0.page")
    create_page(path, 3)
    writer, reader = map_page(path, writable=True), map_page(path, writable=False)

    writer.store_names(["step", "größer"])
    writer.words[layout.HEARTBEAT_AT] = 12.5

    assert reader.words[layout.CYCLE] == 3.0
    assert reader.words[layout.HEARTBEAT_AT] == 12.5
    assert reader.names() == ["step", "größer"]
    with pytest.raises(TypeError):
        reader.words[0] = 1.0
    reader.close()
    writer.close()


def test_a_fresh_page_is_armed_by_nobody(tmp_path) -> None:
    """Its reader finds no rank, no section and no limit, and only the user can open it."""
    path = tmp_path / "c0_r0.page"
    create_page(str(path), 0)
    page = map_page(str(path), writable=False)
    assert page.words[layout.ARMED_AT] == 0.0
    assert page.words[layout.LIMITS_VERSION] == 0.0
    assert page.names() == []
    page.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_page_made_again_does_not_disturb_those_who_have_the_old_one(tmp_path) -> None:
    """A straggler of the last cycle cannot write into the page of the next."""
    path = str(tmp_path / "page")
    create_page(path, 0)
    old = map_page(path, writable=True)
    create_page(path, 1)
    new = map_page(path, writable=False)
    old.words[layout.HEARTBEAT_AT] = 1.0
    assert (old.words[layout.CYCLE], new.words[layout.CYCLE]) == (0.0, 1.0)
    assert new.words[layout.HEARTBEAT_AT] == 0.0
    assert [each.name for each in tmp_path.iterdir()] == ["page"]
    old.close()
    new.close()


def test_what_is_no_page_is_refused(tmp_path) -> None:
    """The message names the file and what is wrong with it."""
    with pytest.raises(PageError, match=r"none' cannot be mapped: No such file"):
        map_page(str(tmp_path / "none"), writable=False)

    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(PageError, match=r"short' has 1 bytes, expected 40960"):
        map_page(str(tmp_path / "short"), writable=False)

    (tmp_path / "other").write_bytes(bytes(layout.PAGE_BYTES))
    with pytest.raises(PageError, match="layout 0, this process knows 3"):
        map_page(str(tmp_path / "other"), writable=False)

    with pytest.raises(PageError, match="cannot be made: No such file"):
        create_page(str(tmp_path / "no" / "page"), 0)


def test_a_page_that_finds_no_space_leaves_nothing(tmp_path, monkeypatch) -> None:
    """Half a page would take the last of it from others."""

    def no_space(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(PageError, match="cannot be made: No space left on device"):
        create_page(str(tmp_path / "page"), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [[str(i) for i in range(253)], ["x" * 30_000]])
def test_more_names_than_fit_are_refused(names) -> None:
    """Nothing is cut off silently."""
    page = private_page()
    with pytest.raises(PageError, match="too many: a rank can have 252"):
        page.store_names(names)


def test_a_damaged_table_of_names_is_no_names(tmp_path) -> None:
    """A reader never fails because of what a rank wrote."""
    page = private_page()
    page.store_names(["a", "b"])
    page.words[layout.N_SECTIONS] = 3.0
    assert page.names() == []
    page.words[layout.N_SECTIONS] = 2.0
    page.words[layout.NAMES_BYTES] = 4.0
    assert page.names() == []
    page.words[layout.NAMES_BYTES] = float("nan")
    assert page.names() == []


def test_another_process_maps_an_anonymous_page_and_reads_its_marks() -> None:
    """As a node guard does; what it stores, the rank reads."""
    page = anonymous_page()
    page.words[layout.AUTOMATIC], page.words[layout.NUMBER] = 5.0, 3.0
    seen = map_page(f"/proc/self/fd/{page.fd}", writable=True)
    view = PageView(seen.words, seen.names)

    assert (view.marks(), view.torch_rank) == (MainThreadMarks(5.0), 2)
    seen.words[layout.LEASE_UNTIL] = 9.0
    assert page.words[layout.LEASE_UNTIL] == 9.0

    page.words[layout.MANUAL], page.words[layout.UNLIMITED] = 4.0, 1.0
    page.words[layout.NUMBER] = 0.0
    assert (view.marks().last_progress, view.marks().unlimited) == (4.0, True)
    assert view.torch_rank is None

    page.leave_in_child()
    page.words[layout.AUTOMATIC] = 6.0
    assert view.marks().automatic == 5.0
    page.close()
    seen.close()
    assert page.fd == -1


def test_a_page_of_marks_of_another_layout_is_refused() -> None:
    """One check for both kinds of page."""
    page = anonymous_page()
    page.words[layout.VERSION] = 2.0
    with pytest.raises(PageError, match="layout 2, this process knows 3"):
        map_page(f"/proc/self/fd/{page.fd}", writable=True)
    page.close()
