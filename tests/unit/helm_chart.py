"""The Helm chart of examples/deploy, rendered with the few constructs that its templates use.

Where there is a ``helm``, a test compares its output with this one's.
"""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "examples" / "deploy" / "helm"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
RELEASE = "train"
_IF = re.compile(r"^\{\{- if (\S+) \}\}\n(.*?)^\{\{- end \}\}\n", re.DOTALL | re.MULTILINE)
_LIST = re.compile(r"^ *\{\{- toYaml (\S+) \| nindent (\d+) \}\}\n", re.MULTILINE)
_VALUE = re.compile(r"\{\{ (\S+)( \| quote)? \}\}")


def manifests(**changed: Any) -> list[dict[str, Any]]:
    """Documents of the chart, with these values in place of the default ones."""
    context = {"Values": {**VALUES, **changed}, "Release": {"Name": RELEASE}}

    def value(path: str) -> Any:
        return reduce(lambda found, name: found[name], path.lstrip(".").split("."), context)

    def as_yaml(found: re.Match[str]) -> str:
        lines = yaml.safe_dump(value(found[1])).splitlines()
        return "".join(f"{' ' * int(found[2])}{line}\n" for line in lines)

    text = (CHART / "templates" / "training.yaml").read_text(encoding="utf-8")
    text = _IF.sub(lambda found: found[2] if value(found[1]) else "", text)
    text = _LIST.sub(as_yaml, text)
    text = _VALUE.sub(
        lambda found: f'"{value(found[1])}"' if found[2] else str(value(found[1])), text
    )
    assert "{{" not in text, "a construct that this renderer does not know"
    return list(yaml.safe_load_all(text))
