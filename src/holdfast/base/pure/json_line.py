"""A log line as one JSON object, for log collectors (``--ft-log-format json``). Pure."""

from __future__ import annotations

VARIABLE = "HOLDFAST_LOG_FORMAT"
"""Set to :data:`JSON` in ranks whose own lines of holdfast have this form, too."""
JSON = "json"


def json_line(
    wall: float,
    level: str,
    node: str,
    text: str,
    *,
    cycle: int | None = None,
    rank: int | None = None,
) -> str:
    """The object, without the end of its line; fields that are not known are left out.

    Args:
        wall: Seconds since 1970; the field ``time`` is UTC, by ISO 8601, in milliseconds.
        level: Name of the level, as ``INFO``.
        node: Name of the host.
        text: May have several lines.
        cycle: From 0.
        rank: Global.
    """
    import json  # noqa: PLC0415 - seldom used, and no rank should wait for it
    from datetime import datetime, timezone  # noqa: PLC0415 - as above

    time = datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")
    shown = {
        "time": time.removesuffix("+00:00") + "Z",
        "level": level,
        "node": node,
        "cycle": cycle,
        "rank": rank,
        "text": text,
    }
    return json.dumps({name: value for name, value in shown.items() if value is not None})
