"""Which probes are run, by what the user wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.health.checks import Checks
from holdfast.health.messages import HealthConfig
from holdfast.health.pure.health import Fitness


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (HealthConfig(), set()),
        (HealthConfig(nic_state=True), {"nic"}),
        (HealthConfig(nic_monitor=True), {"nic losses"}),
        (HealthConfig(endpoint="/h.sock"), {"service"}),
        (HealthConfig(storage=True), {"storage"}),
        (HealthConfig(storage_paths=("/data",)), {"storage"}),
    ],
)
def test_what_is_wanted_is_looked_at_before_a_join(wanted: HealthConfig, names: set[str]) -> None:
    looks = {check.name for check in Checks(wanted).before_join()}
    assert looks - {"gpu", "nvlink", "xid"} == {"host"} | names


def test_paths_that_are_named_are_looked_at_without_the_mounts(tmp_path: Path) -> None:
    """A file system that the job does not use may be as slow as it likes."""
    there, missing = str(tmp_path), str(tmp_path / "missing")
    wanted = HealthConfig(storage_paths=(there, missing))
    [look] = [check.look for check in Checks(wanted).before_join() if check.name == "storage"]
    assert {found.subject: found.verdict for found in look()} == {
        f"path {there}": Fitness.HEALTHY,
        f"path {missing}": Fitness.UNHEALTHY,
    }


@pytest.mark.parametrize(
    ("visible", "has_node", "has_gpus"),
    [
        (None, False, False),
        ("", False, False),
        ("-1", False, False),
        (None, True, True),
        ("0,1", False, True),
        ("GPU-8f", False, True),
    ],
)
def test_gpus_are_looked_at_where_there_are_or_where_somebody_expects_some(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    visible: str | None,
    has_node: bool,
    has_gpus: bool,
) -> None:
    """Elsewhere no start waits for the driver's library, and nothing wakes the health process."""
    node = tmp_path / "nvidiactl"
    if has_node:
        node.touch()
    monkeypatch.setattr("holdfast.health.checks._NODES", (str(node),))
    checks = Checks(HealthConfig(visible_devices=visible))
    of_gpus = {"gpu", "nvlink", "xid"}
    assert checks.has_gpus == has_gpus
    assert {look.name for look in checks.before_join()} >= (of_gpus if has_gpus else set())
    assert [look.name for look in checks.while_running()] == (["gpu", "xid"] if has_gpus else [])


def test_a_link_that_was_lost_between_two_cycles_ends_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look before the join is where losses are counted from."""
    lost = {"mlx5_0": 4}
    monkeypatch.setattr("holdfast.health.nic.Cards.names", lambda _: list(lost))
    monkeypatch.setattr("holdfast.health.nic.Cards.n_lost", lambda _: dict(lost))
    monkeypatch.setattr("holdfast.health.nic.Cards.users", lambda _: {})
    checks = Checks(HealthConfig(nic_monitor=True))
    before = next(check for check in checks.before_join() if check.name == "nic losses")
    watch = next(check for check in checks.while_running() if check.name == "nic losses")
    assert before.look() == []
    lost["mlx5_0"] = 5
    assert before.look() == []
    assert [finding.text for finding in watch.look()] == [""]
    lost["mlx5_0"] = 6
    assert [finding.text for finding in watch.look()] == ["lost its link (5 times before, 6 now)"]
