"""Every variable and option is described, and one without effect says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast.options.arguments import parse_args
from holdfast.options.options import BY_NAME, FORMER, OPTIONS
from holdfast.options.plan import LaunchPlan, make_plan
from holdfast.options.variables import IDLE_VARIABLES, described
from holdfast.options.without_effect import variables_without_effect

ROOT = Path(__file__).parents[3]
SPECIFIED = """
LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE
ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCHELASTIC_ERROR_FILE OMP_NUM_THREADS FT_LAUNCHER_IPC_SOCKET FT_RANK_MONITOR_IPC_SOCKET
SLURM_PROCID NVRX_GPUS_PER_NUMA PYTHON_EXEC TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE NVRX_LOG_DEBUG NVRX_LOG_TO_STDOUT
NVRX_NODE_LOCAL_TMPDIR NVRX_LOG_MAX_FILE_SIZE_KB NVRX_LOG_MAX_LOG_FILES CROSS_SLURM_PROCID
SLURM_ARRAY_TASK_ID SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_JOB_ID SLURM_TOPOLOGY_ADDR
SLURM_TOPOLOGY_ADDR_PATTERN SLURM_TOPOLOGY_NODES_PER_BLOCK NVRX_INFRA_RANK_FROM_NODENAME
SLURMD_NODENAME NVRX_DISABLE_RANK_MONITORS NVRX_TELEMETRY_EXPORTER NVRX_TELEMETRY_FILE
FT_LAUNCHER_LOGLEVEL
"""
"""Specification 6."""
TORCHS = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts
monitor-interval start-method role module no-python run-path log-dir redirects tee
local-ranks-filter node-rank master-addr master-port local-addr logs-specs term-timeout
workers-stop-timeout
"""
"""Specification 5.1; 5.2 is in test_arguments.py."""
DESCRIBED = dict(described())
"""Every variable that is read or known, and its effect, as --help-all and the site show it."""
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_OURS = re.compile(r"(NVRX|FT|TORCH|TORCHELASTIC|SLURMD?|CROSS|HOLDFAST|CUDA|GRPC|JOB|OMP|PYTHON)_")


@pytest.mark.parametrize("name", SPECIFIED.split())
def test_every_variable_of_the_specification_is_described(name: str) -> None:
    """With its effect, or with what is there instead of it."""
    assert DESCRIBED[name]


@pytest.mark.parametrize("name", TORCHS.split())
def test_every_option_of_torchrun_in_the_specification_is_known(name: str) -> None:
    """In a table in which each has its sentence."""
    assert BY_NAME[f"--{name}"].help


def test_no_module_reads_a_variable_that_is_not_described() -> None:
    """A new variable gets a line in the documentation."""
    read = set()
    sources = [*(ROOT / "src/holdfast").rglob("*.py"), *(ROOT / "compat/src").rglob("*.py")]
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
                is_name = _NAME.fullmatch(name) and not name.endswith("_ENV_VAR")  # ft's constants
                if is_name and _OURS.match(name):
                    read.add(name)
            elif isinstance(node, ast.Subscript) or (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            ):
                read |= _environment_name(node)
    assert len(read) > 50
    assert read <= set(DESCRIBED)


def _environment_name(node: ast.Subscript | ast.Call) -> set[str]:
    """``environ["X"]`` and ``environ.get("X")`` in any of their forms."""
    if isinstance(node, ast.Subscript):
        owner, key = node.value, node.slice
    else:
        assert isinstance(node.func, ast.Attribute)
        owner, key = node.func.value, node.args[0] if node.args else None
    is_environment = ast.unparse(owner) in ("os.environ", "environ", "env", "self._environ")
    is_name = isinstance(key, ast.Constant) and str(key.value).isupper()
    return {str(key.value)} if is_environment and is_name else set()


def test_only_options_that_do_something_or_say_why_not_are_known() -> None:
    """Old spellings lead to one of them."""
    assert set(FORMER.values()) <= set(BY_NAME)
    assert all(option.help for option in OPTIONS)


def test_a_variable_is_described_once() -> None:
    names = [name for name, _ in described()]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", IDLE_VARIABLES)
def test_a_variable_without_effect_is_warned_of_by_name(name: str) -> None:
    """Once, with what is there instead; and not where it is switched off."""
    [line] = variables_without_effect({name: "/tmp/x"})
    assert line == f"{name}: without effect here; {IDLE_VARIABLES[name]}"
    assert variables_without_effect({name: "0"}) == variables_without_effect({name: ""}) == []
    assert line in plan("x.py", {name: "/tmp/x"}).warnings


def test_variables_for_one_purpose_are_one_line() -> None:
    """Files of the log, for example."""
    set_ = dict.fromkeys(["NVRX_LOG_MAX_LOG_FILES", "NVRX_NODE_LOCAL_TMPDIR"], "9")
    [line] = variables_without_effect({**set_, "NVRX_LOG_TO_STDOUT": "1"})
    assert line.startswith("NVRX_NODE_LOCAL_TMPDIR, NVRX_LOG_MAX_LOG_FILES: without effect here; ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("x.py", ""),
        ("--monitor-interval 5 x.py", "--monitor-interval (the end of a rank wakes"),
        ("--ft-skip-section-response=false x.py", "--ft-skip-section-response (misuse"),
        ("--ft-rdzv-impl legacy --start-method fork x.py", "--start-method (ranks are always"),
    ],
)
def test_an_option_without_effect_that_is_given_is_noted(words: str, named: str) -> None:
    """At level info: job scripts have them, and nothing is wrong."""
    notes = plan(words).notes
    assert [named in note for note in notes] == ([True] if named else [])
    assert plan(words).warnings == plan("x.py").warnings


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            "--nnodes=1 --node-rank 3 --rdzv-endpoint h:1 --ft-segment 2 --max-restarts 1 x.py",
            "without effect, as this job has one node: --node-rank, --rdzv-endpoint, --ft-segment",
        ),
        (
            "--ft-restart-window 60 --ft-warm-preload numpy x.py",
            "without effect, as --max-restarts is 0: --ft-restart-window, --ft-warm-preload",
        ),
        ("--ft-warm-standby false x.py", None),
        ("--nnodes=2 --node-rank 1 --rdzv-endpoint h:1 --ft-use-infra-group-rank false x.py", None),
    ],
)
def test_options_that_another_one_leaves_without_effect_are_noted(
    words: str, note: str | None
) -> None:
    """With the reason."""
    assert plan(words).notes == (() if note is None else (note,))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("x.py", ""),
        ("--ft-max-no-progress-cycles 3 x.py", "--ft-max-no-progress-cycles:"),
        ("--ft-max-no-progress-restarts 3 x.py", "--ft-max-no-progress-cycles:"),
        ("--ft-min-progress-iterations 3 x.py", "--ft-min-progress-iterations:"),
        ("--ft-max-no-progress-cycles 0 x.py", ""),
        ("--ft-max-no-progress-cycles 3 --ft-checkpoint-iteration-file /x x.py", ""),
    ],
)
def test_a_progress_limit_without_a_measure_of_progress_is_warned_of(
    words: str, named: str
) -> None:
    """Only where it was given: it has a default."""
    lines = [line for line in plan(words).warnings if "how far the job is" in line]
    assert [f"without effect: {named}" in line for line in lines] == ([True] if named else [])


def test_a_progress_limit_of_a_file_without_a_measure_is_warned_of(tmp_path: Path) -> None:
    """As of the command line."""
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {max_no_progress_cycles: 3}")
    assert "--ft-max-no-progress-cycles: no file" in " ".join(
        plan(f"--ft-cfg-path {path} x.py").warnings
    )


def test_a_variable_of_no_option_is_warned_of() -> None:
    """One letter too few, and the job has no restarts."""
    environ = {"PET_MAX_RESTART": "3", "PET_NPROC_PER_NODE": "2", "PET_QUUX_FROBNICATION": "1"}
    assert parse_args(["x.py"], environ).warnings == [
        "PET_MAX_RESTART: no option reads this variable; did you mean PET_MAX_RESTARTS?",
        "PET_QUUX_FROBNICATION: no option reads this variable",
    ]


@pytest.mark.parametrize(("value", "to_stdout"), [("1", True), ("true", True), ("0", False)])
def test_the_log_goes_to_stdout_where_a_variable_says_so(value: str, to_stdout: bool) -> None:
    """NVRX_LOG_TO_STDOUT; without it, to stderr."""
    assert plan("x.py", {"NVRX_LOG_TO_STDOUT": value}).log_to_stdout is to_stdout
    assert plan("x.py").log_to_stdout is False


def plan(words: str, environ: dict[str, str] | None = None) -> LaunchPlan:
    environ = environ or {}
    args = parse_args(words.split(), environ)
    args.training_script = __file__
    return make_plan(args, environ)
