"""Healthy scenarios: how a script begins, what it does to its process, and how it ends."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from tests.harmless.scenario import AT, GLOO_S, Scenario, healthy, pause_s

HERE = Path(__file__).parent
ROOT = str(HERE.parents[1])


# ---------------------------------------------------------------- how it is started
@healthy
class OnlyTrains(Scenario):
    """Nothing special."""

    fast = True


@healthy
class StartsItselfAgain(Scenario):
    """``exec`` of itself, with another environment."""

    def begin(self) -> None:
        if "EXECUTED" not in os.environ:
            os.environ["EXECUTED"] = "1"
            os.execv(sys.executable, [sys.executable, *sys.argv])


@healthy
class StartedByAShell(Scenario):
    """Each rank is a shell, and Python its child."""

    command = ("--no-python", "sh", "-c", "{python} {script}; exit $?")


@healthy
class StartedByAProfiler(Scenario):
    """``python -m cProfile script.py``."""

    command = ("--no-python", "{python}", "-m", "cProfile", "-o", "{folder}/profile", "{script}")


@healthy
class StartedInDevelopmentMode(Scenario):
    """``python -X dev -u``."""

    command = ("--no-python", "{python}", "-X", "dev", "-W", "ignore", "-u", "{script}")


@healthy
class StartedAsAModule(Scenario):
    """``--module``."""

    command = ("--module", "tests.harmless.{module}")
    env = {"PYTHONPATH": ROOT + ":{PYTHONPATH}"}  # noqa: RUF012 - a constant


@healthy
class StartedByAModule(Scenario):
    """``--module runpy`` and the name of the module."""

    command = ("--module", "runpy", "tests.harmless.{module}")
    env = {"PYTHONPATH": ROOT + ":{PYTHONPATH}"}  # noqa: RUF012 - a constant


@healthy
class HasItsOwnSitecustomize(Scenario):
    """A folder of the user on PYTHONPATH, whose ``sitecustomize`` uses the rank's variables."""

    env = {"PYTHONPATH": str(HERE / "user_folder") + ":{PYTHONPATH}"}  # noqa: RUF012 - a constant

    def begin(self) -> None:
        self.mark("sitecustomize " + os.environ["SITE_OF_RANK"])


@healthy
class ChangesPythonpath(Scenario):
    """It has entries that do not exist, and the script changes it and ``sys.path``."""

    env = {"PYTHONPATH": "/nowhere::relative:{PYTHONPATH}"}  # noqa: RUF012 - a constant

    def joined(self) -> None:
        os.environ["PYTHONPATH"] = "/elsewhere"
        sys.path[:] = [each for each in sys.path if each != "relative"] + ["/elsewhere"]


@healthy
class ImportsForLong(Scenario):
    """A slow file system: seconds until torch is there."""

    def begin(self) -> None:
        time.sleep(pause_s())


@healthy
class TrainsInAThread(Scenario):
    """The main thread joins it."""

    kinds = ("plain",)
    loop = "in a thread"

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class MakesItsGroupAgain(Scenario):
    """``destroy_process_group`` and ``init_process_group`` in mid-training, at another place."""

    kinds = ("plain",)
    loop = "group made again"


@healthy
class LeavesItsGroupOpen(Scenario):
    """No ``destroy_process_group`` at the end."""

    kinds = ("plain",)
    loop = "group left open"


@healthy
class HasNoOptimizer(Scenario):
    """It changes parameters by itself."""

    kinds = ("plain",)
    loop = "no optimizer"

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class HasSeveralOptimizers(Scenario):
    kinds = ("plain",)
    loop = "several optimizers"

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class SpawnsRanksOfItsOwn(Scenario):
    """``torch.multiprocessing.spawn`` inside a rank."""

    kinds = ("plain",)
    loop = "spawned ranks"

    def begin(self) -> None:
        """The children import the script, too; the launcher's store is not for them."""
        if multiprocessing.current_process().name != "MainProcess":
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)


@healthy
class AccumulatesGradients(Scenario):
    """Steps of the optimizer are rare, and one of them late."""

    accumulate = 4

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


# ---------------------------------------------------------------- what it does to its process
@healthy
class ClosesDescriptors(Scenario):
    """``os.closerange(3, 256)``, as programs do that become daemons."""

    def begin(self) -> None:
        os.closerange(3, 256)


@healthy
class ClosesStdout(Scenario):
    def begin(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)

    def end(self) -> None:
        sys.stdout.close()


@healthy
class ClosesStdin(Scenario):
    def begin(self) -> None:
        os.close(0)


@healthy
class PrintsALot(Scenario):
    """20 MB, long lines, half lines and bytes that are no text."""

    def pause(self) -> None:
        for _ in range(20):
            sys.stdout.buffer.write(b"x" * (1 << 20) + b"\xff\xfe\n\r\x1b[2J")
        for number in range(20000):
            print("line", number)
        sys.stdout.write("no end of line")
        sys.stdout.flush()


@healthy
class ReadsStdin(Scenario):
    def begin(self) -> None:
        self.mark(f"stdin {len(sys.stdin.read())}")


@healthy
class ChangesFolder(Scenario):
    """Into one that is then removed, and for good into another one."""

    def joined(self) -> None:
        os.chdir("/")

    def pause(self) -> None:
        if self.rank == 0:
            folder = Path(os.environ["OUT"]) / "gone"
            folder.mkdir()
            os.chdir(folder)
            folder.rmdir()
            time.sleep(pause_s())
            os.chdir("/tmp")


@healthy
class ChangesUmask(Scenario):
    def begin(self) -> None:
        os.umask(0o777)

    def end(self) -> None:
        os.umask(0o022)


@healthy
class LowersItsLimits(Scenario):
    """Few descriptors, small files, no core, no locked memory."""

    def begin(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))


@healthy
class ClearsItsEnvironment(Scenario):
    """Once the group is there: not even PATH is left. Trainers need WORLD_SIZE to their end."""

    kinds = ("plain",)

    def step(self, number: int) -> None:
        if number == 1:
            os.environ.clear()
        if number == AT and self.rank == 0:
            time.sleep(self.pauses_s)

    def begin(self) -> None:
        self.pauses_s = pause_s()


@healthy
class RenamesItself(Scenario):
    """A name that readers of /proc get wrong: ``a) R 1 (b``."""

    def begin(self) -> None:
        ctypes.CDLL(None).prctl(15, b"a) R 1 (b\n", 0, 0, 0)

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class HidesFromDebuggers(Scenario):
    """``PR_SET_DUMPABLE`` 0, a subreaper, without ``PR_SET_PDEATHSIG``."""

    def begin(self) -> None:
        prctl = ctypes.CDLL(None).prctl
        for option, value in ((4, 0), (36, 1), (1, 0)):
            prctl(option, value, 0, 0, 0)

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class BecomesASession(Scenario):
    """``setsid``."""

    def begin(self) -> None:
        os.setsid() if os.getpid() != os.getsid(0) else None


@healthy
class ChangesItsPriority(Scenario):
    """``nice`` and the CPUs that it may use."""

    def begin(self) -> None:
        os.nice(5)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@healthy
class HasManyThreads(Scenario):
    def joined(self) -> None:
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(2 * pause_s(),), daemon=True).start()


@healthy
class SwitchesThreadsRarely(Scenario):
    """``sys.setswitchinterval(5)``: other threads hardly get the interpreter."""

    def begin(self) -> None:
        sys.setswitchinterval(5)

    def pause(self) -> None:
        if self.rank == 0:
            end = time.monotonic() + pause_s()
            while time.monotonic() < end:
                sum(range(1000))


@healthy
class FillsMemory(Scenario):
    def pause(self) -> None:
        if self.rank == 0:
            held = [bytearray(os.urandom(1 << 20)) * 32 for _ in range(8)]
            time.sleep(pause_s())
            del held


@healthy
class StopsTime(Scenario):
    """``time.time`` and ``time.monotonic`` are replaced, as freezing libraries do."""

    def pause(self) -> None:
        if self.rank == 0:
            kept = time.time, time.monotonic
            time.time, time.monotonic = (lambda: 0.0), (lambda: 0.0)
            time.sleep(pause_s())
            time.time, time.monotonic = kept


@healthy
class Audits(Scenario):
    """An audit hook that forbids new programs and sockets once training has begun."""

    def joined(self) -> None:
        def hook(event: str, _: object) -> None:
            if event in ("subprocess.Popen", "os.exec", "os.fork", "socket.bind"):
                self.mark(event)
                raise PermissionError(event)

        sys.addaudithook(hook)

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class Traces(Scenario):
    """``sys.settrace`` and ``threading.settrace``, as debuggers and coverage do."""

    def joined(self) -> None:
        sys.settrace(lambda *_: None)
        threading.settrace(lambda *_: None)


@healthy
class turns_warnings_into_errors(Scenario):  # noqa: N801 - the scripts ask for this name
    def pause(self) -> None:
        warnings.simplefilter("error")
        if self.rank == 0:
            time.sleep(pause_s())
        warnings.resetwarnings()


@healthy
class HasItsOwnExceptHook(Scenario):
    def begin(self) -> None:
        def said(kind: type[BaseException], *_: object) -> None:
            self.mark(f"hook {kind.__name__}")

        sys.excepthook = said
        threading.excepthook = lambda args: said(args.exc_type)

    def pause(self) -> None:
        def fail() -> None:
            raise ValueError("of a thread")

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()


@healthy
class HasItsOwnSignalHandlers(Scenario):
    """For all signals that a library may want, and real-time ones."""

    def begin(self) -> None:
        names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM")
        numbers = [getattr(signal, name) for name in names]
        for number in (*numbers, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
            signal.signal(number, lambda number, _: self.mark(f"signal {number}"))

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class IgnoresItsChildren(Scenario):
    """``SIGCHLD`` is ignored, so that the kernel reaps."""

    def begin(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def pause(self) -> None:
        subprocess.run(["true"], check=False)
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class BlocksSignals(Scenario):
    """All of them, in the main thread and in its children."""

    def begin(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.SIGRTMAX + 1))

    def pause(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())


@healthy
class DumpsItsStacks(Scenario):
    """faulthandler is the user's: enabled, on a signal, and on a timer."""

    def begin(self) -> None:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        faulthandler.dump_traceback_later(1, repeat=True)

    def pause(self) -> None:
        if self.rank == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(pause_s())

    def end(self) -> None:
        faulthandler.cancel_dump_traceback_later()


# ---------------------------------------------------------------- its children
@healthy
class AChildWorksOn(Scenario):
    """Forked at the start, it works until the end of the rank, which it sees by a pipe."""

    def begin(self) -> None:
        here, self.there = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.there)
            os.read(here, 1)
            self.mark("child has seen the end")
            os._exit(0)
        os.close(here)

    def end(self) -> None:
        os.close(self.there)
        os.waitpid(self.pid, 0)


@healthy
class AChildIsADaemon(Scenario):
    """Twice forked, in a session of its own; the rank looks for its file."""

    def pause(self) -> None:
        path = Path(os.environ["OUT"]) / f"daemon{self.rank}"
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 64)
                time.sleep(pause_s() / 2)
                path.touch()
                time.sleep(2)
            os._exit(0)
        os.waitpid(pid, 0)
        while not path.exists():
            time.sleep(0.05)
        self.mark("the daemon has written")


@healthy
class AChildFails(Scenario):
    """By a signal, and with an exit code: the rank does not mind."""

    def pause(self) -> None:
        codes = [
            subprocess.run(["sh", "-c", c], check=False).returncode
            for c in ("exit 7", "kill -9 $$")
        ]
        self.mark(str(codes))


# ---------------------------------------------------------------- how it ends
@healthy
class ItsExitHandlerIsSlow(Scenario):
    def end(self) -> None:
        atexit.register(self.mark, "exit handler is over")
        atexit.register(time.sleep, pause_s())


@healthy
class ItsExitHandlersFail(Scenario):
    """Python prints that, and the exit code stays 0."""

    def begin(self) -> None:
        atexit.register(lambda: self.mark("first handler"))
        atexit.register(lambda: 1 / 0)
        atexit.register(lambda: self.mark("last handler"))


@healthy
class AThreadOutlivesMain(Scenario):
    """It uploads the model; Python waits for it."""

    def end(self) -> None:
        def upload() -> None:
            time.sleep(pause_s())
            self.mark("uploaded")

        threading.Thread(target=upload).start()


@healthy
class ADaemonThreadIsLeft(Scenario):
    def end(self) -> None:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


@healthy
class EndsBySystemExit(Scenario):
    def end(self) -> None:
        raise SystemExit(0)


@healthy
class EndsBySysExit(Scenario):
    def end(self) -> None:
        sys.exit()


@healthy
class EndsAtOnce(Scenario):
    """``os._exit(0)``, without exit handlers."""

    def end(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        os._exit(0)


@healthy
class SleepsAtTheEnd(Scenario):
    """In ``finally``, while the others have ended."""

    def end(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        try:
            sys.exit(0)
        finally:
            time.sleep(GLOO_S + self.rank * pause_s())
            self.mark("finally")


# ---------------------------------------------------------------- failures, equal under both
class _Fails(Scenario):
    fails = True


@healthy
class ExitsWith3(_Fails):
    """Rank 1, in every cycle."""

    def pause(self) -> None:
        if self.rank == 1:
            sys.exit(3)


@healthy
class Raises(_Fails):
    def pause(self) -> None:
        if self.rank == 1:
            raise ValueError("loss is \u221e")


@healthy
class DiesByASignal(_Fails):
    def pause(self) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)


@healthy
class IsKilled(_Fails):
    def pause(self) -> None:
        if self.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@healthy
class ExitsWithWords(_Fails):
    """``sys.exit("...")`` is exit code 1."""

    def pause(self) -> None:
        if self.rank == 0:
            sys.exit("no data")


@healthy
class IsInterrupted(_Fails):
    """``KeyboardInterrupt`` of the script itself."""

    def pause(self) -> None:
        if self.rank == 1:
            raise KeyboardInterrupt
