"""What a crashed rank died of, from messages as Python 3.11 and torch 2.13 write them."""

# ruff: noqa: E501 - messages as they are

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.evidence.pure import last_words
from holdfast.evidence.pure.failure_kinds import _RULES, Attribution
from holdfast.evidence.pure.failure_kinds import attribute as attribute_words

IN_SCRIPT = 'Traceback (most recent call last):\n  File "/job/train.py", line 12, in <module>\n'
IN_TORCH = (
    IN_SCRIPT
    + "    torch.load(path)\n"
    + '  File "/v/lib/python3.11/site-packages/torch/serialization.py", line 776, in __init__\n'
)
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
PEER = "This is typically caused by a remote worker crashing. Check the logs of the remote worker"
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:3356, {}, NCCL version 2.21.5\n{}: {}\nLast error:\n{}"
)


def attribute(
    exit_code: int,
    error: str | None = None,
    traceback: str | None = None,
    last_lines: list[str] | tuple[str, ...] = (),
    *,
    is_oom_kill: bool = False,
) -> Attribution:
    """As a rank's end has it: from its error file, else from the end of its stderr."""
    words = last_words.read(last_lines, exit_code=exit_code)
    if error:
        words = last_words.of_error_file(error, traceback)
    return attribute_words(exit_code, words, last_lines, is_oom_kill=is_oom_kill)


REAL = [
    # torch 2.13 and Python 3.11, on a CPU
    (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot "
            "allocate memory)"
        ),
        "out of host memory (4503599627370496 bytes)",
    ),
    ("MemoryError", "out of host memory"),
    (
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_21834_36_0>: "
            "No space left on device (28)"
        ),
        "out of shared memory",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/model.pt'",
        "missing file (/nowhere/model.pt)",
    ),
    (
        (
            "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\n"
            "Original Traceback (most recent call last):\n"
            '  File "/v/site-packages/torch/utils/data/_utils/worker.py", line 358, in _worker_loop\n'
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0'"
        ),
        "missing file (/data/shard-0)",
    ),
    ("PermissionError: [Errno 13] Permission denied: '/data/x'", "no permission (/data/x)"),
    (
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
        "disk full",
    ),
    ("OSError: [Errno 28] No space left on device", "disk full"),
    (
        "OSError: [Errno 122] Disk quota exceeded: '/home/me/ck.pt'",
        "disk full (/home/me/ck.pt)",
    ),
    ("OSError: [Errno 116] Stale file handle: '/data/x'", "storage that fails (/data/x)"),
    ("ModuleNotFoundError: No module named 'flash_attn'", "missing module (flash_attn)"),
    (
        "ImportError: cannot import name 'nonesuch' from 'torch' (/v/torch/__init__.py)",
        "import that fails (nonesuch)",
    ),
    (
        "AssertionError: batch size 3 does not divide by 4",
        "assertion (batch size 3 does not divide by 4)",
    ),
    ("AssertionError", "assertion"),
    ("AssertionError: Torch not compiled with CUDA enabled", "no usable GPU"),
    (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
        "shapes that do not fit (2x3 and 2x3)",
    ),
    (
        (
            "RuntimeError: Error(s) in loading state_dict for Linear:\n"
            "\tsize mismatch for weight: copying a param with shape torch.Size([3, 3])"
        ),
        "checkpoint of another model (Linear)",
    ),
    (
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
            "directory. This is an internal miniz error."
        ),
        "damaged checkpoint",
    ),
    (
        (
            "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the "
            "value\nPlease file an issue: WeightsUnpickler error: \n\nUnsupported operand 80\n\nCheck"
        ),
        "damaged checkpoint",
    ),
    (
        (
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded\n"
            "\tWeightsUnpickler error: Unsupported global: GLOBAL posixpath.join was not an allowed"
        ),
        "checkpoint with more than tensors (posixpath.join)",
    ),
    (
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            "network address. port: 49511, useIpv6: false, code: -98, name: EADDRINUSE, message: "
            "address already in use"
        ),
        "port in use (49511)",
    ),
    ("OSError: [Errno 98] Address already in use", "port in use"),
    (
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 1000ms while "
            "trying to connect to (127.0.0.1, 29500)."
        ),
        "no connection to the store of rank 0 (127.0.0.1, 29500)",
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 1000ms, keys: /x",
        "rendezvous of ranks that timed out (keys: /x)",
    ),
    (
        (
            "torch.distributed.DistStoreError: Timed out after 2 seconds waiting for clients. 1/2 "
            "clients joined."
        ),
        "rendezvous of ranks that timed out (1/2 clients joined)",
    ),
    (
        "socket.gaierror: [Errno -2] Name or service not known",
        "host name that does not resolve",
    ),
    ("OSError: [Errno 24] Too many open files: '/dev/null'", "too many open files"),
    ("RuntimeError: can't start new thread", "too many processes or threads"),
    (
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "too many processes or threads",
    ),
    (
        "RuntimeError: DataLoader worker (pid(s) 21516) exited unexpectedly",
        "data loader worker that ended (21516)",
    ),
    (
        "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",
        "not a number (SqrtBackward0)",
    ),
    ("SyntaxError: invalid syntax", "syntax error"),
    (
        f"RuntimeError: {GLOO}/pair.cc:537] Read error [127.0.0.1]:5554: Connection reset by peer.",
        "another rank was lost ([127.0.0.1]:5554)",
    ),
    (
        (
            "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n"
            f" Original exception: \n{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:33681. "
            f"{PEER}"
        ),
        "another rank was lost (Rank 1)",
    ),
    (
        f"RuntimeError: {GLOO}/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation",
        "collective that timed out (3000ms for recv)",
    ),
    # of NCCL and CUDA, as their sources and bug reports have them
    (
        NCCL.format(
            "remote process exited or there was a network error",
            "ncclRemoteError",
            "A call failed possibly due to a network error or a remote process exiting.",
            "NET/IB : Got completion from peer 10.0.3.7<41234> with status=12 opcode=0 len=0",
        ),
        "NCCL lost another rank (10.0.3.7<41234>)",
    ),
    (
        NCCL.format(
            "internal error - please report this issue to the NCCL developers",
            "ncclInternalError",
            "Internal check failed.",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
        "error of NCCL (ncclInternalError)",
    ),
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "capacity of 79.10 GiB of which 1.06 GiB is free."
        ),
        "out of GPU memory",
    ),
    (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "uncorrectable memory error of a GPU",
    ),
    (
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be",
        "device-side assert in a CUDA kernel",
    ),
    (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "wrong address in a CUDA kernel",
    ),
    (
        "RuntimeError: CUDA error: unspecified launch failure\nCUDA kernel errors might be",
        "error of CUDA (unspecified launch failure)",
    ),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "error of CUDA (CUDNN_STATUS_EXECUTION_FAILED)",
    ),
]


@pytest.mark.parametrize(("message", "expected"), REAL)
def test_a_message_has_a_kind(message: str, expected: str) -> None:
    """From stderr, with and without what torch puts before each line, and from an error file."""
    lines = (IN_TORCH + message).splitlines()
    found = attribute(1, last_lines=["an earlier line", *lines, ""])

    assert str(found) == expected
    assert found.place == "/job/train.py:12"
    assert found.exception == message.partition(":")[0].rpartition(".")[2]
    assert found.advice or found.kind == "assertion"
    assert attribute(1, last_lines=[f"[rank3]: {line}" for line in lines]) == found
    assert attribute(1, error=message, traceback=IN_TORCH) == found


def test_every_kind_has_its_example() -> None:
    kinds = {str(attribute(1, error=message)).partition(" (")[0] for message, _ in REAL}

    assert {rule.kind for rule in _RULES} - kinds == {"collectives that do not match"}


@pytest.mark.parametrize(
    ("exit_code", "lines", "expected"),
    [
        (
            -6,
            [
                "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
                (
                    f"  what():  [enforce fail at {GLOO[1:]}/pair.cc:456] op.preamble.length <= "
                    "op.nbytes. 1000 vs 12. Received data size doesn't match expected size."
                ),
            ],
            "collectives that do not match (1000 vs 12)",
        ),
        (
            -6,
            [
                (
                    "[rank3]:[E ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
                    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=53, OpType="
                    "ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 ms"
                ),
                "terminate called after throwing an instance of 'c10::DistBackendError'",
            ],
            "collective that timed out (SeqNum=53, OpType=ALLREDUCE)",
        ),
        (-6, ["Aborted"], "uncaught C++ exception or failed assertion"),
        (
            -6,
            ["done", "terminate called without an active exception"],
            "native thread that outlived Python",
        ),
        (-11, [], "segmentation fault in native code"),
        (-15, [], ""),
        (
            -15,
            [
                (
                    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T07:00:00 DUE TO "
                    "PREEMPTION ***"
                )
            ],
            "stopped by the scheduler (preemption)",
        ),
        (-9, ["MemoryError"], ""),
        (3, ["checking FileNotFoundError handling: ok", "done"], ""),
        (0, ["MemoryError"], ""),
        (-64, [], ""),
    ],
)
def test_other_ends_have_a_kind_where_their_words_tell(
    exit_code: int, lines: list[str], expected: str
) -> None:
    """Only the end counts, unless native code aborted: it writes no exception."""
    assert str(attribute(exit_code, last_lines=lines)) == expected


def test_a_kill_for_memory_is_out_of_memory() -> None:
    assert attribute(-9, is_oom_kill=True).kind == "out of memory"


def test_an_exception_that_no_rule_knows_has_its_place_and_name() -> None:
    """It is not guessed what it means."""
    found = attribute(1, last_lines=[*IN_SCRIPT.splitlines(), "KeyError: 'lr'"])

    assert found == Attribution("", "", "", "/job/train.py:12", "KeyError", "KeyError: 'lr'")
    assert f"{found.words}{found.at}" == "KeyError ('lr') at train.py:12"
    assert found.signature == "KeyError at /job/train.py:12"


def test_a_native_abort_after_an_exception_is_not_the_cause() -> None:
    """A thread of gloo's aborts when Python ends, also where an exception has ended it."""
    lines = [
        *IN_SCRIPT.splitlines(),
        "KeyError: 'lr'",
        "terminate called without an active exception",
    ]

    found = attribute(-6, last_lines=lines)

    assert (found.kind, found.advice, found.exception) == ("", "", "KeyError")


def test_failures_without_a_place_are_like_no_other() -> None:
    for found in attribute(-11), attribute(7), attribute(1, last_lines=["MemoryError"]):
        assert not found.signature


@given(st.integers(-70, 255), st.lists(st.text()), st.none() | st.text(), st.none() | st.text())
def test_whatever_a_rank_writes_is_read(
    exit_code: int, lines: list[str], error: str | None, traceback: str | None
) -> None:
    found = attribute(exit_code, error, traceback, lines)

    assert len(found.what) <= 200
