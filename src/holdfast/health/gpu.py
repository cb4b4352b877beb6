"""Are the GPUs that ranks use fit for work? Asked of the driver; wakes no GPU and needs no CUDA.

The driver's own word counts: since version 570 it says which *recovery action* a GPU needs. Before
that, memory that waits for a reset says it. Counts of errors alone keep no node out: an error that
was contained has ended the process it hit, and the GPU goes on without the page.

Unhealthy: "GPU is lost", "requires reset"; a recovery action (driver 570 and later); memory that
could not be replaced, or waits for a reset.

Suspect: contained memory errors; *drain and reset*, while ranks run; a GPU that is named and not
there.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.health import nvml
from holdfast.health.nvml import Gpu, GpuBrokenError, NoAnswerError, NotToldError, Nvml, NvmlError
from holdfast.health.pure.health import Fact, Finding, Fitness, finding_of

PROBE = "gpu"
_FIRST_WITH_RECOVERY_ACTION = 570
_RECOVERY_ACTION = 230
"""``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``; an older nvidia-ml-py has no name for it."""
_NO_ACTION, _DRAIN_AND_RESET = 0, 4
_ACTIONS = {
    1: "reset the GPU (nvidia-smi --gpu-reset) after its processes have ended",
    2: "reboot this node",
    3: "stop the processes on all GPUs of this node, and all traffic between GPUs; then look again",
    4: "reset the GPU (nvidia-smi --gpu-reset) when its work is done; give it no new work",
    5: "recover the IMEX domain of this node",
    6: "reset the GPU's bus",
    7: "reboot this node",
}
"""``NVML_GPU_RECOVERY_ACTION_*``, and the remedy."""
_UNCORRECTED, _VOLATILE = 1, 0
_LOST = "reset the GPU or reboot this node; if it comes back, see the Xid in dmesg"


def look(
    visible_devices: str | None, limit: int | None = None, *, ranks_run: bool = False
) -> list[Finding]:
    """One finding for each GPU that ranks use; see :meth:`.Nvml.visible`.

    ``ranks_run``: work that is under way may end on a GPU that should be given no new work.
    """
    try:
        library, gpus = nvml.visible(visible_devices, limit)
    except NvmlError as error:
        return [Finding(PROBE, "driver", Fitness.UNKNOWN, f"cannot inspect GPUs: {error}")]
    return [
        finding_of(PROBE, gpu.name, _facts(library, gpu, ranks_run=ranks_run), gpu.position)
        for gpu in gpus
    ]


def _facts(library: Nvml, gpu: Gpu, *, ranks_run: bool) -> list[Fact]:
    """All that is known about one GPU; at most one fact where it is broken for good."""
    if isinstance(gpu.error, GpuBrokenError):
        return [(Fitness.UNHEALTHY, f"the driver says: {gpu.error}; {_LOST}")]
    if gpu.error is not None:
        return [(Fitness.SUSPECT, f"the driver does not give access to it: {gpu.error}")]
    try:
        found = list(_recovery(library, gpu, ranks_run=ranks_run))
        knows_action = all(verdict is not Fitness.UNKNOWN for verdict, _ in found)
        found += _memory(library, gpu, is_judge=not knows_action, ranks_run=ranks_run)
    except GpuBrokenError as error:
        return [(Fitness.UNHEALTHY, f"the driver says: {error}; {_LOST}")]
    return found


def _recovery(library: Nvml, gpu: Gpu, *, ranks_run: bool) -> Iterator[Fact]:
    try:
        major, version = library.driver_version()
        if major < _FIRST_WITH_RECOVERY_ACTION:
            text = f"driver {version} knows no recovery actions, {_FIRST_WITH_RECOVERY_ACTION} does"
            yield Fitness.UNKNOWN, text
            return
        action = library.field(gpu.handle, _RECOVERY_ACTION)
    except NoAnswerError as error:
        yield Fitness.UNKNOWN, f"recovery action: {error}"
        return
    if action == _NO_ACTION:
        return
    remedy = _ACTIONS.get(action, "see 'GPU Recovery Action' in nvidia-smi -q")
    can_end = ranks_run and action == _DRAIN_AND_RESET
    verdict = Fitness.SUSPECT if can_end else Fitness.UNHEALTHY
    yield verdict, f"the driver asks for recovery action {action}: {remedy}"


def _memory(library: Nvml, gpu: Gpu, *, is_judge: bool, ranks_run: bool) -> Iterator[Fact]:
    """ECC and its repairs; ``is_judge``: the driver gives no recovery action for the GPU."""
    when_pending = Fitness.UNHEALTHY if is_judge and not ranks_run else Fitness.SUSPECT
    for facts_of in (_replaced, _errors):
        try:
            yield from facts_of(library, gpu, when_pending)
        except NotToldError:  # a GPU without ECC: nothing to know
            continue
        except NoAnswerError as error:
            yield Fitness.UNKNOWN, f"memory errors: {error}"


def _replaced(library: Nvml, gpu: Gpu, when_pending: Fitness) -> Iterator[Fact]:
    try:
        rows = library.ask("nvmlDeviceGetRemappedRows", gpu.handle)
    except NotToldError:  # before Ampere, pages were retired instead
        if library.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu.handle):
            yield when_pending, f"pages of its memory wait to be retired: {_ACTIONS[4]}"
        return
    _, n_replaced, is_pending, has_failed = rows
    if has_failed:
        text = f"a row of its memory could not be replaced, after {n_replaced} that could"
        yield Fitness.UNHEALTHY, f"{text}: have the GPU tested or replaced"
    if is_pending:
        yield when_pending, f"a row of its memory waits to be replaced: {_ACTIONS[4]}"


def _errors(library: Nvml, gpu: Gpu, _when_pending: Fitness) -> Iterator[Fact]:
    count = library.ask("nvmlDeviceGetTotalEccErrors", gpu.handle, _UNCORRECTED, _VOLATILE)
    if count:
        yield Fitness.SUSPECT, f"{count} uncorrectable memory errors since it was last reset"
