"""Dashboard and alerts under examples/observability: form, and that the ledger is all there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from holdfast.events.run.accounts import ACCOUNTS

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def titled(begin: str) -> dict[str, Any]:
    (panel,) = [panel for panel in PANELS if panel["title"].startswith(begin)]
    return panel


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_goodput_and_the_ledger_come_first() -> None:
    """The ledger is stacked, as shares; the accounts that have a colour are accounts."""
    goodput, ledger = titled("Goodput"), titled("Where the time")
    drawn = ledger["fieldConfig"]

    assert PANELS[:2] == [goodput, ledger]
    assert "holdfast_rank_seconds" in ledger["targets"][0]["expr"]
    assert drawn["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert drawn["defaults"]["max"] == goodput["fieldConfig"]["defaults"]["max"] == 1
    named = {each["matcher"]["options"] for each in drawn["overrides"]}
    assert {"steps", "stalled"} <= named <= set(ACCOUNTS)


def test_each_alert_says_what_it_found() -> None:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert "LowGoodput" in names
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert "$labels.run" in rule["annotations"]["summary"] or "$labels.rank" in str(rule)
