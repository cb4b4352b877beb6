"""The monitors of a real training of four ranks show which one the others wait for, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bench.why_rank import culprit_of

from holdfast.base.pure.codec import decode
from holdfast.evidence.pure import evidence as e
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.evidence.pure.verdict import judge
from holdfast.net.port import ReservedPort
from holdfast.watch.pure.monitor_messages import TO_LAUNCHER, EvidenceCollected
from tests.integration.test_monitor_process import BOUND_S, Node
from tests.waiting import until

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
RANKS = 4
CASES = [
    ("interpreter", e.INTERPRETER),
    ("stopped", e.STOPPED),
    ("skip", e.MISMATCH),
    ("loader", e.LOADER),
    ("lock", e.WAITING),
    ("ring", e.WAITING),
]
TRAINING = """
import os, signal, sys
import torch, torch.distributed, torch.nn.parallel, torch.utils.data
from tests.real import light_torch
from bench import why_rank
for line in sys.stdin:
    cycle, port, *paths = line.split()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(len(paths)))
    os.environ["TORCHELASTIC_RESTART_COUNT"] = cycle
    pids = []
    for rank, path in enumerate(paths):
        pids.append(os.fork())
        if not pids[-1]:
            os.setsid()
            os.environ.update(FT_RANK_MONITOR_IPC_SOCKET=path, RANK=str(rank), LOCAL_RANK=str(rank))
            why_rank.main()
            os._exit(0)
    print(*pids, flush=True)
    sys.stdin.readline()
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print("over", flush=True)
"""


class Training:
    """Four monitors, and ranks that are forked from one process: torch is imported once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.nodes = []
        for rank in range(RANKS):
            (folder / str(rank)).mkdir()
            node = Node(folder / str(rank), awaits_verdict=True, local_rank=rank)
            stack.callback(node.end)
            self.nodes.append(node)
        env = {
            "WHY_CASES": ",".join(case for case, _ in CASES),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", TRAINING],
                env=os.environ | env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self.process.kill)
        self.incident = 0

    def ask(self, line: str) -> list[str]:
        """Have the process do it; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    @contextmanager
    def run(self, cycle: int) -> Iterator[list[int]]:
        """The pids of the ranks of a cycle; they are killed at the end."""
        for node in self.nodes:
            node.begin_cycle(cycle)
        port = ReservedPort()
        paths = " ".join(node.path for node in self.nodes)
        yield [int(pid) for pid in self.ask(f"{cycle} {port.number} {paths}")]
        assert self.ask("") == ["over"]
        port.release()

    def look(self, cycle: int, pids: list[int]) -> Verdict:
        """Ask all monitors, and judge what they show."""
        self.incident += 1
        digests: dict[int, RankDigest] = {}
        about = {
            "op": "collectevidence",
            "incident": self.incident,
            "cycle": cycle,
            "within_s": 5.0,
        }
        for rank, node in enumerate(self.nodes):
            node.tell(**about, rank=rank, pid=pids[rank])
        for rank, node in enumerate(self.nodes):
            looked = decode(TO_LAUNCHER, node.expect("evidencecollected", incident=self.incident))
            assert isinstance(looked, EvidenceCollected)
            digests[rank] = looked.digest
        return judge(digests, {})

    def comes_to(self, expected: Verdict, cycle: int, pids: list[int], case: str) -> None:
        """At first it has not come to its hang."""
        found = Verdict()

        def is_expected() -> bool:
            nonlocal found
            found = self.look(cycle, pids)
            shown = found.culprits, found.kind, found.confidence
            return shown == (expected.culprits, expected.kind, expected.confidence)

        until(is_expected, lambda: (case, found), 2 * BOUND_S)


@pytest.mark.timeout(360)
def test_the_rank_that_hangs_is_named_whichever_way_it_hangs(tmp_path: Path) -> None:
    """``python -m bench why`` does the same with launchers, on two nodes, in a dozen ways."""
    with ExitStack() as stack:
        training = Training(tmp_path, stack)
        for cycle, (case, kind) in enumerate(CASES):
            with training.run(cycle) as pids:
                expected = Verdict((culprit_of(cycle, RANKS),), kind, confidence=e.HIGH)
                training.comes_to(expected, cycle, pids, case)
