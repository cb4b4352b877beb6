"""Fixtures of several tests of commands."""

from pathlib import Path

import pytest

from holdfast.events.run import run_links


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temp folder and the tmpfs of this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(run_links, "_TMPFS", str(folder))
    return folder
