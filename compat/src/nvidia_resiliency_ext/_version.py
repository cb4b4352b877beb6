"""Two versions: of this distribution, and the one that programs compare."""

DISTRIBUTION = "0.7.0.dev0"
"""Of the package ``holdfast-nvrx-compat``."""
COMPATIBLE_WITH = "0.6.0"
"""Programs ask for at least this version of the other implementation."""

__version__ = f"{COMPATIBLE_WITH}+holdfast.{DISTRIBUTION}"
"""PEP 440: a local version, which compares greater than the version it is compatible with."""
