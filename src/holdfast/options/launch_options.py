"""The options that torchrun has, with its names and types, and the launcher's own of that kind.

Defaults are torchrun's except where the reason says why not. All can be set as ``PET_<DEST>`` in
the environment, as torchrun's can. Pure.
"""

from __future__ import annotations

from typing import Any

from holdfast.options import forms
from holdfast.options.option import NODES, Option, pet, under
from holdfast.options.values import NOT_YET, Choice, Numeric, Text, ValueKind

_NOT_TORCHRUNS = ("--workers-stop-timeout", "--term-timeout")
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_TEXT = Text(null=False)
_BACKEND = Text("NAME", null=False)
_STREAMS = forms.Shaped(
    "STREAMS",
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such numbers by local rank, as in 0:3,11:1",
    forms.read_streams,
)


def _torch(
    name: str, kind: ValueKind | None, default: Any, help_: str, why: str = "", **more: Any
) -> Option:
    """An option that is read from the environment, too, unless it says otherwise."""
    more = {"env": (pet(name),), **more}
    return Option(name, kind, default, help_, why, **more)


def _switch(name: str, help_: str, **more: Any) -> Option:
    return _torch(name, None, False, help_, **more)


LAUNCH_OPTIONS = [
    *under(
        "Job size",
        _torch(
            "--nnodes",
            forms.Shaped(
                "N|MIN:MAX", "a number of nodes, or MIN:MAX with 0 < MIN <= MAX", forms.read_nnodes
            ),
            "1:1",
            "Number of nodes; as MIN:MAX the job also runs with fewer than MAX",
        ),
        _torch(
            "--nproc-per-node",
            forms.Shaped("N|auto|cpu|gpu", "a number of ranks, auto, cpu or gpu", forms.read_nproc),
            "1",
            "Ranks on this node: a number, one per GPU (gpu), per CPU (cpu), or auto: gpu, and "
            "cpu where there are no GPUs",
        ),
        _torch(
            "--node-rank",
            Numeric("node", counted=False, least=0, whole=True),
            0,
            "Number of this node, if the scheduler gives it none",
            needs=NODES,
        ),
        _switch("--standalone", "The job has this node only; membership options are ignored"),
    ),
    *under(
        "What to run",
        _switch("--module", "The script is a module, as with python -m", short="-m"),
        _switch("--no-python", "The script is a program, not started with python"),
        _switch(
            "--run-path",
            "Start the script through runpy.run_path; overrides --no-python",
        ),
        _torch("--role", _TEXT, "default", "Name of the ranks' role in output"),
        _switch(
            "--virtual-local-rank", "Show each rank one GPU only, as device 0, and LOCAL_RANK 0"
        ),
        _torch(
            "--numa-binding",
            Choice(["node", "socket", "exclusive", "core-complex"]),
            None,
            "Bind each rank to CPUs near its GPU",
            "the scheduler may have done so",
            env=(),
        ),
    ),
    *under(
        "Membership",
        _torch(
            "--rdzv-backend",
            _BACKEND,
            "c10d",
            "How launchers meet: at the endpoint, where one leads (c10d, or static, numbered by "
            "--node-rank), or through another backend of torch",
            "it needs no other service",
        ),
        _torch(
            "--rdzv-endpoint",
            _TEXT,
            "",
            "HOST:PORT where launchers meet",
            "one node needs none",
            needs=NODES,
        ),
        _torch(
            "--rdzv-id",
            _TEXT,
            "none",
            "Name of the job, the same on all nodes",
            "a job of one node gets a random name",
        ),
        _torch(
            "--rdzv-conf",
            forms.Shaped(
                "KEY=VALUE,...", "KEY=VALUE pairs separated by commas", forms.read_rdzv_conf
            ),
            "",
            "Settings: is_host (0 or 1), read_timeout, join_timeout or timeout, last_call_timeout, "
            "keep_alive_timeout, grow_cooldown (seconds), mixed_workloads, secret; other keys "
            "have no effect",
        ),
        _torch(
            "--master-addr",
            _TEXT,
            "127.0.0.1",
            "Address at which rank 0 listens for the other ranks",
        ),
        _torch(
            "--master-port",
            Numeric("port", counted=False, least=0, most=65535, whole=True),
            None,
            "Port at which rank 0 listens",
            "a free one for each cycle",
        ),
        _torch(
            "--local-addr",
            _TEXT,
            None,
            "Address of this node for the others",
            "looked up",
            needs=NODES,
        ),
    ),
    *under(
        "Restarting",
        _torch(
            "--max-restarts",
            Numeric("restarts", least=0, whole=True),
            0,
            "How many times ranks are restarted before the job fails",
            "torchrun's",
        ),
    ),
    *under(
        "Stopping",
        _torch(
            "--workers-stop-timeout",
            Numeric("seconds", least=0),
            15.0,
            "From SIGTERM for a restart, or after a failure, to SIGKILL",
            "after a failure ranks have nothing to save",
        ),
        _torch(
            "--term-timeout",
            Numeric("seconds", least=0),
            1800.0,
            "From a signal to the launcher, which it passes on, to SIGKILL",
            "ranks may be writing their last checkpoint",
        ),
        _torch(
            "--shutdown-timeout",
            Numeric("seconds", least=0, whole=True),
            None,
            "torchrun's name for --term-timeout; also TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        ),
        _torch(
            "--signals-to-handle",
            forms.Shaped("SIGNAL,...", "names of signals separated by commas", forms.read_signals),
            DEFAULT_SIGNALS,
            "Signals that the launcher passes on to its ranks before it ends",
            "those that schedulers and terminals send; add SIGUSR1,SIGUSR2 under Slurm",
            env=("PET_SIGNALS_TO_HANDLE", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
        ),
    ),
    *under(
        "Output",
        _torch(
            "--log-dir",
            Text("FOLDER", null=False),
            None,
            "Folder under which each run gets a folder of its own",
            "a temporary folder, removed after a run without failures",
        ),
        _torch(
            "--redirects",
            _STREAMS,
            "0",
            "Streams of ranks that go to files instead of the console (1 stdout, 2 stderr, 3 "
            "both), also by local rank: 0:3,11:1",
            short="-r",
        ),
        _torch(
            "--tee",
            _STREAMS,
            "0",
            "Streams of ranks that go to files and to the console, as in --redirects",
            short="-t",
        ),
        _torch(
            "--local-ranks-filter",
            forms.Shaped(
                "RANK,...", "local ranks separated by commas, as in 0,1,2", forms.read_ranks
            ),
            "",
            "Local ranks whose output is shown on the console",
            "all",
        ),
        _torch(
            "--log-line-prefix-template",
            _TEXT,
            "",
            "Start of each teed line; knows ${role_name}, ${rank}, ${local_rank} and ${hostname}",
            "[${role_name}${local_rank}]:",
        ),
        _torch(
            "--duplicate-stdout-filters",
            forms.CommaList(),
            [],
            "Copy lines of stdout that hold one of these texts to filtered_stdout.log",
        ),
        _torch(
            "--duplicate-stderr-filters",
            forms.CommaList(),
            [],
            "Copy lines of stderr that hold one of these texts to filtered_stderr.log",
        ),
        _torch(
            "--logs-specs",
            Text("NAME", null=False),
            None,
            "Entry point of a class that decides where output goes",
            env=(),
            idle=NOT_YET,
        ),
        _torch(
            "--event-log-handler",
            Text("NAME", null=False),
            "null",
            "torch's handler of launcher events",
            "events are always written to the run's folder",
            idle=NOT_YET,
        ),
    ),
    *under(
        "Compatibility",
        _torch(
            "--start-method",
            Choice(["spawn", "fork", "forkserver"]),
            "spawn",
            "How torchrun starts functions",
            idle="ranks are always programs here",
        ),
        _torch(
            "--monitor-interval",
            Numeric("seconds", least=0),
            0.3,
            "Period of torchrun's checks of its ranks",
            idle="the end of a rank wakes the launcher",
        ),
    ),
    *under(
        "Help",
        _switch("--version", "Print the version and exit", env=()),
        _switch(
            "--print-config",
            "Print the options that are set, their defaults and sources; then exit",
            env=(),
        ),
        _switch(
            "--print-config-all",
            "The same for all options",
            env=(),
        ),
        _torch(
            "--print-completion",
            Choice(["bash", "zsh", "tcsh", "fish", "powershell"]),
            None,
            "Print a script that completes these options in a shell, and exit; the package shtab "
            "makes it",
            env=(),
        ),
    ),
]

TORCHRUNS = (
    "--help",
    *(
        each.name
        for each in LAUNCH_OPTIONS
        if each.group != "Help" and each.name not in _NOT_TORCHRUNS
    ),
    "--print-completion",
)
"""Names of torchrun's options; they may be abbreviated."""
