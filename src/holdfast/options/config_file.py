"""The section ``fault_tolerance`` of a YAML file, which may be a whole training configuration."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import ConfigError

SECTION = "fault_tolerance"
"""The key of a YAML file under which the fields are looked for, at any depth."""


class SectionNotFoundError(ConfigError):
    """A YAML file without the map ``fault_tolerance``, or with an empty one.

    Attributes:
        keys: All keys of the file, in order, for a hint.
    """

    def __init__(self, text: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.keys = keys


class ConfigFileNotFoundError(ConfigError, FileNotFoundError):
    """A configuration file that does not exist."""


def read_section(path: str) -> Mapping[Any, Any]:
    """The first non-empty map under :data:`SECTION`: outer before inner, earlier before later.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or has something else there.
        SectionNotFoundError: It has no such map.
    """
    import yaml  # noqa: PLC0415 - seldom needed

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is heavy
            tree = yaml.safe_load(file)
    except FileNotFoundError:
        raise ConfigFileNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a 13th month
        text = " ".join(str(error).split())
        raise _malformed_yaml_error()(f"{path}: is not valid YAML: {text}") from None
    maps = list(_maps(tree, set()))
    found = [section for each in maps if (section := each.get(SECTION)) not in (None, {})]
    for section in found:
        if isinstance(section, Mapping):
            return section
    if found:
        raise ConfigError(
            f"{path}: {SECTION}: {found[-1]!r} cannot be used; it takes a map of fields to values"
        )
    keys = tuple(dict.fromkeys(key for each in maps for key in each if isinstance(key, str)))
    raise SectionNotFoundError(f"{path}: has no section {SECTION!r}, or an empty one", keys)


def _maps(node: object, seen: set[int]) -> Iterator[Mapping[Any, Any]]:
    """Every map, depth first; YAML's aliases can make circles."""
    if id(node) in seen or not isinstance(node, dict | list):
        return
    seen.add(id(node))
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        yield from _maps(child, seen)


@functools.cache
def _malformed_yaml_error() -> type[ConfigError]:
    """A ConfigError that is a yaml.YAMLError too; made late, because importing yaml takes long."""
    import yaml  # noqa: PLC0415

    class MalformedYamlError(ConfigError, yaml.YAMLError):
        """A configuration file that is not YAML."""

    return MalformedYamlError
