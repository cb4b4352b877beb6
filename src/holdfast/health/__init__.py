"""Probes that look at a host and return facts (:class:`holdfast.health.pure.health.Finding`).

Read first: ``host_health_main.py``, ``checks.py``, a probe per file; ``node_service.py`` (gRPC);
``pure/gate.py``.

A probe raises nothing for a fact it can't determine, imports neither torch nor CUDA, and returns
within its bound wherever the kernel lets it. docs/health.md lists them.

A rank asks about its own device by the names here; they are loaded when first used (PEP 562).
"""

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.health.own_device import gpu_problem, link_downed_counts, nvlink_problem

__all__ = ["gpu_problem", "link_downed_counts", "nvlink_problem"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"{__name__}.own_device"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
