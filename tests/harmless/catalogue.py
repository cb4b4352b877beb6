"""All scenarios: import this one."""

from tests.harmless import hangs, lives, pauses, waits  # noqa: F401 - they list themselves
