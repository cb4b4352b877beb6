"""Values and the classes of ``data`` as JSON, and back. Bytes from outside never execute (S-1).

Values that JSON knows stay as they are. Others are ``{"!": kind, "value": ...}``: tuples, sets,
mappings whose keys are no texts, members of enumerations of ``data``, and its dataclasses by the
names of their fields. A kind that is not in the tables below is refused, on both sides.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from holdfast.fault_tolerance import config
from holdfast.net.pure.frames import FrameError
from nvidia_resiliency_ext.fault_tolerance import data

_KIND = "!"
_CLASSES: dict[str, type] = {
    each.__name__: each
    for each in (
        config.FaultToleranceConfig,
        data.AuthkeyMsg,
        data.ErrorMsg,
        data.HeartbeatMsg,
        data.HeartbeatTimeouts,
        data.InitMsg,
        data.OkMsg,
        data.RankInfo,
        data.SectionMsg,
        data.SectionTimeouts,
        data.UpdateConfigMsg,
        data.WorkloadControlRequest,
    )
}
_ENUMS: dict[str, type[enum.Enum]] = {
    each.__name__: each for each in (data.SectionAction, data.WorkloadAction)
}


def to_plain(value: Any) -> Any:
    """``value`` in a form that JSON can carry.

    Raises:
        TypeError: ``value`` holds an object that is not sent.
    """
    kind = type(value)
    if isinstance(value, enum.Enum) and kind.__name__ in _ENUMS:
        return {_KIND: kind.__name__, "value": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if _CLASSES.get(kind.__name__) is kind:
        fields = (
            value.to_wire()
            if isinstance(value, config.FaultToleranceConfig)
            else {each.name: to_plain(getattr(value, each.name)) for each in _fields(kind)}
        )
        return {_KIND: kind.__name__, "value": fields}
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    if isinstance(value, (tuple, set, frozenset)):
        name = "tuple" if isinstance(value, tuple) else "set"
        return {_KIND: name, "value": [to_plain(each) for each in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and key != _KIND for key in value):
            return {key: to_plain(each) for key, each in value.items()}
        pairs = [[to_plain(key), to_plain(each)] for key, each in value.items()]
        return {_KIND: "dict", "value": pairs}
    raise TypeError(
        f"{kind.__name__} objects are not sent between processes, because bytes from a socket must "
        "never execute: send None, bool, int, float, str, list, tuple, set, dict, or a class of "
        "nvidia_resiliency_ext.fault_tolerance.data"
    )


def from_plain(plain: Any) -> Any:
    """The value that :func:`to_plain` made ``plain`` of.

    Raises:
        FrameError: It made no such thing.
    """
    if isinstance(plain, list):
        return [from_plain(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if _KIND not in plain:
        return {key: from_plain(each) for key, each in plain.items()}
    try:
        return _object(plain[_KIND], plain["value"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FrameError(f"a message holds a malformed {plain[_KIND]!r}: {error!r}") from None


def _object(kind: str, value: Any) -> Any:
    if kind == "tuple":
        return tuple(from_plain(each) for each in value)
    if kind == "set":
        return {from_plain(each) for each in value}
    if kind == "dict":
        return {from_plain(key): from_plain(each) for key, each in value}
    if kind in _ENUMS:
        return _ENUMS[kind][value]
    if kind == config.FaultToleranceConfig.__name__:
        return config.FaultToleranceConfig.from_wire(value)
    return _CLASSES[kind](**{name: from_plain(each) for name, each in value.items()})


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)
