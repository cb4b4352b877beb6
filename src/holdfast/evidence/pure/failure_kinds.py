"""What kind of failure a crashed rank died of, from its exit code and its last words.

Pure: one table of rules, first match wins; from the particular to the general. A rule reads the
exception that ended the rank (``last_words.py``), and where a rank was aborted in native code all
of its last lines. What no rule knows has no kind, and is not guessed.

Two failures are *the same* if they are of one kind, at one line of the user's code. A failure
without a known place (a signal, a bare exit code) is never the same as another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.base.pure.value import Value
from holdfast.evidence.pure.last_words import LastWords

_SIGILL, _SIGABRT, _SIGBUS, _SIGFPE, _SIGSEGV, _SIGTERM = 4, 6, 7, 8, 11, 15
_WHAT_MAX = 200
"""Characters of a detail."""


class Attribution(Value):
    """Cause of a rank's death.

    Attributes:
        kind: In a few words, the same for all failures of the kind; empty: no rule knows it.
        what: Which file, module, port, peer; empty: the kind says it all.
        advice: One line; empty: there is none but to look at the traceback.
        place: As of its last words, as the next two.
    """

    kind: str = ""
    what: str = ""
    advice: str = ""
    place: str = ""
    exception: str = ""
    message: str = ""

    def __str__(self) -> str:
        """Kind and detail: ``missing file (/data/shard-0)``; empty where there is no kind."""
        return f"{self.kind} ({self.what})" if self.what else self.kind

    @property
    def words(self) -> str:
        """Kind or exception, and detail: ``ValueError (lr is negative)``."""
        if self.kind or not self.exception:
            return str(self)
        said = self.message.partition(": ")[2]
        return f"{self.exception} ({said})" if said else self.exception

    @property
    def at(self) -> str:
        """`` at train.py:8``; empty: it is not known where."""
        return f" at {self.place.rpartition('/')[2]}" if self.place else ""

    @property
    def signature(self) -> str:
        """Equal for failures that are the same; empty: of a failure that is like no other."""
        name = self.exception or self.kind
        return f"{name} at {self.place}" if name and self.place else ""


class _Rule(Value):
    """A kind of failure.

    Attributes:
        texts: Any of them is in the message.
        pattern: Of the detail, a group; compiled when it is needed: the launcher restarts ranks
            meanwhile.
    """

    kind: str
    texts: tuple[str, ...]
    advice: str
    pattern: str = ""

    def detail(self, words: str) -> str:
        """Which file, port, peer ...; empty where the message does not say."""
        match = re.search(self.pattern, words) if self.pattern else None
        return next(filter(None, match.groups()), "")[:_WHAT_MAX] if match else ""


LOADER_WORKER_ENDED = "data loader worker that ended"
_PATH = r"\[Errno \d+\][^:\n]*: '([^'\n]+)'"
"""How Python's OSError ends."""
_RULES = (
    # ---- memory
    _Rule(
        "out of GPU memory",
        (
            *("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory"),
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        "use a smaller batch or activation checkpointing; nvidia-smi shows other processes that "
        "hold GPU memory",
    ),
    _Rule(
        "out of shared memory",
        (
            *("unable to allocate shared memory", "unable to write to file </torch_"),
            "is killed by signal: Bus error",
        ),
        "data loaders pass batches through /dev/shm: enlarge it (docker run --shm-size, an "
        "emptyDir of medium Memory), or use fewer workers",
    ),
    _Rule(
        "out of host memory",
        (
            *("DefaultCPUAllocator: can't allocate", "DefaultCPUAllocator: not enough memory"),
            *("MemoryError", "std::bad_alloc", "[Errno 12]"),
        ),
        "use fewer or smaller data loader workers, or ask the scheduler for more memory",
        r"you tried to allocate (\d+ bytes)",
    ),
    # ---- GPUs
    _Rule(
        "uncorrectable memory error of a GPU",
        ("uncorrectable ECC error", "uncorrectable NVLink error", "ECC error"),
        "take the node out of the job, and have the GPU reset or replaced",
    ),
    _Rule(
        "device-side assert in a CUDA kernel",
        ("device-side assert triggered",),
        "often an index is out of range; CUDA_LAUNCH_BLOCKING=1 shows the call",
    ),
    _Rule(
        "wrong address in a CUDA kernel",
        ("illegal memory access", "misaligned address", "an illegal instruction was encountered"),
        "CUDA_LAUNCH_BLOCKING=1 shows the call, compute-sanitizer the kernel",
    ),
    _Rule(
        "no usable GPU",
        (
            *("Torch not compiled with CUDA enabled", "Found no NVIDIA driver"),
            *("no CUDA-capable device is detected", "No CUDA GPUs are available"),
            *("invalid device ordinal", "CUDA driver version is insufficient"),
        ),
        "compare nvidia-smi, CUDA_VISIBLE_DEVICES, torch.version.cuda and --nproc-per-node on this "
        "node",
    ),
    # ---- other ranks, and the network
    _Rule(
        "collective that timed out",
        ("Watchdog caught collective operation timeout", "Timed out waiting"),
        "another rank did not take part: look for one that failed, hangs or calls something else",
        r"(SeqNum=\d+, OpType=\w+)|Timed out waiting (\d+ms for \w+)",
    ),
    _Rule(
        "collectives that do not match",
        ("op.preamble.length <= op.nbytes", "Detected mismatch between collectives on ranks"),
        "this rank or another one made a different call than the rest, or with tensors of another "
        "size; TORCH_DISTRIBUTED_DEBUG=DETAIL names the call",
        r"op\.nbytes\. (\d+ vs \d+)",
    ),
    _Rule(
        "NCCL lost another rank",
        (
            *("ncclRemoteError", "remote process exit", "Connection closed by remote peer"),
            *("socketPollConnect", "socketStartConnect", "Got completion from peer"),
        ),
        "look at the rank that failed first, then at the network: NCCL_DEBUG=INFO shows the link",
        r"(?:peer|connect to) ([\w.:%-]+<\d+>)",
    ),
    _Rule(
        "error of NCCL",
        ("NCCL error", "ncclInternalError", "ncclInvalidUsage", "ncclUnhandledCudaError"),
        "NCCL_DEBUG=INFO shows the reason; all ranks need the same version of NCCL",
        r"(nccl(?:System|Internal|UnhandledCuda)Error|ncclInvalid\w+)",
    ),
    _Rule(
        "error of CUDA",
        ("CUDA error: ", "CUBLAS_STATUS_", "CUDNN_STATUS_"),
        "CUDA_LAUNCH_BLOCKING=1 shows the call; if the GPU is at fault, dmesg shows an Xid",
        r"CUDA error: ([^\n]{1,100})|(CU(?:BLAS|DNN)_STATUS_\w+)",
    ),
    _Rule(
        "rendezvous of ranks that timed out",
        ("waiting for clients.", "wait timeout after"),
        "some ranks did not come so far: look for one that failed, or that starts slowly",
        r"(\d+/\d+ clients joined)|(keys: \S+)",
    ),
    _Rule(
        "no connection to the store of rank 0",
        ("client socket has timed out", "client socket has failed"),
        "is rank 0 running, does MASTER_ADDR resolve on this node, and does the firewall let it "
        "pass?",
        r"connect to \(([^)\s]+, \d+)\)",
    ),
    _Rule(
        "another rank was lost",
        (
            *("failed to pass monitoredBarrier", "Connection closed by peer"),
            *("Connection reset by peer", "Connection was likely closed", "Broken pipe"),
            "Application timeout caused pair closure",
        ),
        "look at the rank that ended first, to which this one lost its connection: one that left "
        "by sys.exit prints no error",
        r"(Rank \d+) failed to pass|(?:error|peer|writev) (\[[\w.:%]+\]:\d+)",
    ),
    _Rule(
        "port in use",
        ("EADDRINUSE", "[Errno 98]", "ddress already in use"),
        "another process listens there (ss -ltnp shows it): end it, or choose another port",
        r"port: (\d+)",
    ),
    _Rule(
        "host name that does not resolve",
        ("gaierror", "Name or service not known", "Temporary failure in name resolution"),
        "check the name, and DNS on this node (getent hosts NAME)",
    ),
    # ---- files and limits
    _Rule(
        "disk full",
        (
            *("[Errno 28]", "[Errno 122]", "No space left on device", "Disk quota exceeded"),
            *("PytorchStreamWriter failed writing", "] . unexpected pos ", "file write failed"),
        ),
        "free space, or raise the quota, where checkpoints are written (df -h, df -i, quota)",
        _PATH,
    ),
    _Rule(
        "too many open files",
        ("[Errno 24]", "Too many open files"),
        "raise the limit (ulimit -n), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    _Rule(
        "too many processes or threads",
        ("can't start new thread", "Resource temporarily unavailable"),
        "raise the limit (ulimit -u, pids.max of the container), or start fewer workers",
    ),
    _Rule(
        "storage that fails",
        ("[Errno 5]", "[Errno 116]", "[Errno 121]", "[Errno 112]", "[Errno 107]"),
        "see dmesg, and the mount on this node: the disk or the network file system failed",
        _PATH,
    ),
    _Rule(
        "missing file",
        ("[Errno 2]", "FileNotFoundError"),
        "is it on this node, and mounted at this path?",
        _PATH,
    ),
    _Rule(
        "no permission",
        ("[Errno 13]", "[Errno 1]", "[Errno 30]", "PermissionError"),
        "check owner and mode, and whether the file system is mounted read-only",
        _PATH,
    ),
    _Rule(
        "damaged checkpoint",
        (
            *("PytorchStreamReader failed", "pickle data was truncated", "invalid load key"),
            *("EOFError: Ran out of input", "Unsupported operand "),
        ),
        "the file was cut short or changed: continue from the checkpoint before it",
    ),
    _Rule(
        "checkpoint of another model",
        (" in loading state_dict for ",),
        "model and checkpoint do not have the same parameters",
        r"state_dict for (\w+)",
    ),
    _Rule(
        "checkpoint with more than tensors",
        ("Weights only load failed",),
        "allow its classes (torch.serialization.add_safe_globals), or, if you trust the file, "
        "load it with weights_only=False",
        r"Unsupported global: GLOBAL (\S+)",
    ),
    _Rule(
        LOADER_WORKER_ENDED,
        ("DataLoader worker (pid",),
        "the kernel may have killed it for memory (dmesg); num_workers=0 shows an error of its own",
        r"DataLoader worker \((?:pid|pid\(s\)) ([\d, ]+)\)",
    ),
    # ---- the program
    _Rule(
        "missing module",
        ("ModuleNotFoundError", "No module named "),
        "install it in the environment of this node",
        r"No module named '([^'\n]+)'",
    ),
    _Rule(
        "import that fails",
        ("ImportError", "undefined symbol: ", "cannot open shared object file"),
        "installed packages do not fit each other, or a file of yours has the name of a package",
        r"cannot import name '([^'\n]+)'|undefined symbol: (\S+)",
    ),
    _Rule("syntax error", ("SyntaxError", "IndentationError", "TabError"), "correct the script"),
    _Rule(
        "not a number",
        ("returned nan values in its", "FloatingPointError", "oss is nan", "oss is NaN"),
        "lower the learning rate, clip gradients, or look at the batch",
        r"Function '(\w+)' returned nan",
    ),
    _Rule(
        "shapes that do not fit",
        ("shapes cannot be multiplied", "The size of tensor a ", "is invalid for input of size"),
        "correct the script or its configuration",
        r"multiplied \(([^)\n]+)\)",
    ),
    _Rule("assertion", ("AssertionError",), "", r"AssertionError: ([^\n]+)"),
)
"""The first one that fits counts: from the particular to the general."""
_SIGNALS: dict[int, tuple[str, str]] = {
    _SIGTERM: ("", "a scheduler (preemption, time limit) or a person sent SIGTERM"),
    _SIGSEGV: ("segmentation fault in native code", "PYTHONFAULTHANDLER=1 shows the stack"),
    _SIGBUS: (
        "bus error",
        "often /dev/shm, or the disk of a memory-mapped file, is full (df -h)",
    ),
    _SIGFPE: ("arithmetic fault in native code", "PYTHONFAULTHANDLER=1 shows the stack"),
    _SIGILL: ("illegal instruction", "a package was built for another processor"),
}
_AT_EXIT = (
    "native thread that outlived Python",
    (
        "if the training was complete, let the script end with time.sleep(0.1): a thread of gloo's "
        "still held a tensor (docs/hugging-face.md)"
    ),
)
_AT_EXIT_WORDS = "terminate called without an active exception"
"""Of a thread that wants the interpreter's lock when Python has ended: seen of all_gather."""
_ABORT = "uncaught C++ exception or failed assertion", "its last lines say which"
_BY_THE_SCHEDULER = r"CANCELLED AT .* DUE TO (PREEMPTION|TIME LIMIT|NODE FAILURE)"
"""What slurmstepd writes."""


def attribute(
    exit_code: int,
    words: LastWords,
    last_lines: Sequence[str] = (),
    *,
    is_oom_kill: bool = False,
    parked: str = "",
) -> Attribution:
    """Attribute a rank's death to a kind of failure.

    Args:
        exit_code: As of the process; -N: killed by signal N.
        words: Its last words.
        last_lines: The end of its stderr.
        is_oom_kill: The kernel killed it for memory.
        parked: Memory that parked interpreters held, for people, where the rank was, or may have
            been, killed for memory; empty: none.
    """
    if exit_code == 0:
        return Attribution()
    aborted = exit_code == -_SIGABRT
    if exit_code < 0 and not aborted:
        kind, detail, advice = _of_signal(-exit_code, last_lines, is_oom_kill=is_oom_kill)
        advice = "; ".join(filter(None, (advice, parked)))
        return Attribution(kind, detail, advice, words.place if not words.exception else "")
    message = words.message[:_WHAT_MAX]
    rest = words.place, words.exception, message
    for rule in _RULES:
        if any(text in words.text for text in rule.texts):
            return Attribution(rule.kind, rule.detail(words.text), rule.advice, *rest)
    kind, advice = "", ""
    if aborted and not words.exception:
        kind, advice = _AT_EXIT if _AT_EXIT_WORDS in words.text else _ABORT
    return Attribution(kind, "", advice if words.text else "", *rest)


def _of_signal(signum: int, lines: Sequence[str], *, is_oom_kill: bool) -> tuple[str, str, str]:
    if is_oom_kill:
        return "out of memory", "", "ask for more memory, or use fewer data loader workers"
    if match := re.search(_BY_THE_SCHEDULER, "\n".join(lines)):
        return "stopped by the scheduler", match[1].lower(), "queue the job again"
    kind, advice = _SIGNALS.get(signum, ("", ""))
    return kind, "", advice
