"""Snapshots: the state of the training in memory that outlives the rank, taken every few steps.

A restart goes on from the newest one that all ranks have. Importing this package loads no torch::

    snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
    step = snapshots.restore(otherwise=load_my_checkpoint)
    while step < steps:
        train_one_step()
        step += 1
        snapshots.take(step)

``_snapshots.py`` is called by a loop; ``_taking.py`` is one rank from start to end. The state:
``_live_state.py`` walks it; ``_parts.py`` modules, optimizers, objects; ``_found.py`` and
``_saved.py`` put it back (from disk: ``_files.py``; for another number of ranks: ``_reader.py``);
``_random_state.py``, ``_tensors.py``. The copy: ``_copy.py``, in the step or beside the next one,
on ``_ring.py`` (slots), ``_cuda.py``, ``_worker.py``; ``_loading.py`` its way back; ``_link.py``,
``_launcher_link.py``, ``_in_place_link.py``.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.snapshot._snapshots import SnapshotError, Snapshots

__all__ = ["SnapshotError", "Snapshots"]


if not TYPE_CHECKING:  # so that a type checker finds a name that is not there

    def __getattr__(name: str) -> object:
        if name in __all__:
            from holdfast.snapshot import _snapshots  # noqa: PLC0415

            return getattr(_snapshots, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
