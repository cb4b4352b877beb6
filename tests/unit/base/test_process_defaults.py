"""What a process gives to its children."""

from __future__ import annotations

import os

import pytest

from holdfast.base.processes.process_defaults import keep_from_children


def test_without_proc_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher has a better error for that."""

    def fail(_path: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", fail)
    keep_from_children([])


def test_inherited_descriptors_stay_with_the_launcher_but_those_that_are_named() -> None:
    """A rank that held a lock of the shell, as with ``flock 9``, would keep it with its life."""
    lock, script = os.pipe()
    for descriptor in (lock, script):
        os.set_inheritable(descriptor, True)

    keep_from_children(["ft_launcher", f"/dev/fd/{script}"])

    assert (os.get_inheritable(lock), os.get_inheritable(script)) == (False, True)
    keep_from_children([f"--config=/proc/self/fd/{lock}", f"/dev/fd/1{script}"])
    assert not os.get_inheritable(script)
    assert all(os.get_inheritable(descriptor) for descriptor in (0, 1, 2))
    os.close(lock)
    os.close(script)
