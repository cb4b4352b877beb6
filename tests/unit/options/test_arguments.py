"""The command line: torchrun's options, ours, older dialects, and answers to mistakes."""

from __future__ import annotations

import argparse
import os
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.fault_tolerance.config import SETTINGS, FaultToleranceConfig
from holdfast.fault_tolerance.launcher import main
from holdfast.options.arguments import (
    UsageError,
    get_args_parser,
    parse_args,
    torchrun_words,
)
from holdfast.options.help import describe_config, make_parser
from holdfast.options.launch_options import TORCHRUNS
from holdfast.options.option import GROUPS
from holdfast.options.options import BY_LETTER, BY_NAME, COMMON, FORMER, OPTIONS, spellings
from holdfast.options.variables import described


def parse(line: str, environ: dict[str, str] | None = None):
    return parse_args(line.split(), environ or {})


def refused(line: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse(line, environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------ torchrun's table
NOT_TORCHRUNS_DEFAULT = {"rdzv_backend": "c10d", "monitor_interval": 0.3, "master_port": None}
"""Documented differences (master_port: torch 2.9 has 29500); everything else is torchrun's."""
FEWER_CHOICES = {"rdzv_backend"}
MORE_CHOICES = {"print_completion"}
"""Torchrun's depend on the package that makes the script."""
SAMPLES = ["3", "0.5", "x", "a,b,,c", "1:2", "0:3,1:1", ""]


def torchrun_actions() -> list[argparse.Action]:
    from torch.distributed.run import get_args_parser as torchrun_parser

    with mock.patch.dict(os.environ, clear=True):
        return [
            action
            for action in torchrun_parser()._actions
            if not isinstance(action, argparse._HelpAction)
        ]


def test_every_option_of_torchrun_is_ours_under_its_name_with_its_type_and_default():
    """Both spellings, destination, type, choices and default, except for documented differences."""
    with mock.patch.dict(os.environ, clear=True):
        parser = get_args_parser()
    ours = {each: action for action in parser._actions for each in action.option_strings}
    positional = [action.dest for action in parser._actions if not action.option_strings]

    for theirs in torchrun_actions():
        if not theirs.option_strings:
            assert theirs.dest in positional
            continue
        for spelling in theirs.option_strings:
            assert spelling in ours, spelling
            action = ours[spelling]
            assert action.dest == theirs.dest
            expected = NOT_TORCHRUNS_DEFAULT.get(theirs.dest, theirs.default)
            assert action.default == expected, spelling
            assert (action.nargs == 0) == (theirs.nargs == 0), spelling
            if theirs.choices and theirs.dest not in FEWER_CHOICES:
                words = BY_NAME[theirs.option_strings[-1].replace("_", "-")].kind.words
                assert set(words) >= set(theirs.choices)
                assert len(words) == len(theirs.choices) or theirs.dest in MORE_CHOICES


def test_text_becomes_what_it_becomes_in_torchrun():
    """For every text that both take."""
    compared = 0
    with mock.patch.dict(os.environ, clear=True):
        parser = get_args_parser()
    ours = {each: action for action in parser._actions for each in action.option_strings}
    for theirs in torchrun_actions():
        if theirs.nargs == 0 or not theirs.option_strings:
            continue
        for text in SAMPLES:
            try:
                mine = ours[theirs.option_strings[0]].type(text)
            except argparse.ArgumentTypeError:
                continue
            assert mine == theirs.type(text), (theirs.dest, text)
            compared += 1
    assert compared > len(SAMPLES)


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.env], ids=lambda o: o.name)
def test_an_option_can_come_from_the_environment(option):
    """From its variable where the command line does not give it; the command line wins."""
    name = option.env[0]
    assert name == f"PET_{option.dest.upper()}"
    text = {
        "nnodes": "1",
        "nproc_per_node": "3",
        "rdzv_backend": "c10d",
        "start_method": "fork",
        "signals_to_handle": "SIGTERM",
        "rdzv_conf": "a=b",
        "ft_enable_log_server": "true",
        "ft_on_incident_nodes": "all",
        "ft_log_format": "json",
        "ft_per_cycle_applog_prefix": "/x",
        "ft_nvrx_logfile": "/x",
    }.get(option.dest, "1")
    result = parse("x.py", {name: text})

    expected = True if option.kind is None else option.read(name, text)
    assert getattr(result, option.dest) == expected
    assert result.origins[option.dest] == f"environment, {name}"


# ------------------------------------------------------------------ abbreviations
def torchruns_names() -> list[str]:
    names = [action.option_strings[0] for action in torchrun_actions() if action.option_strings]
    return ["--help", *(BY_LETTER[name].name if len(name) == 2 else name for name in names)]


SOME_VALUES = {
    "--start-method": "fork",
    "--numa-binding": "node",
    "--signals-to-handle": "SIGTERM",
    "--rdzv-conf": "a=1",
    "--print-completion": "bash",
}


def abbreviations(name: str) -> list[str]:
    """All beginnings of a name, one of them with underscores."""
    dashes = [name[:end] for end in range(3, len(name))]
    return [*dashes, dashes[-1][:2] + dashes[-1][2:].replace("-", "_")]


def test_an_abbreviation_means_what_it_means_to_torchrun_or_is_ambiguous_as_there():
    """Every beginning of every name of torchrun's; ours beside them change nothing."""
    names = torchruns_names()
    assert {*names} <= {*TORCHRUNS}
    later = [each for each in TORCHRUNS if each not in names]
    clear = 0
    for name, short in [(each, short) for each in names for short in abbreviations(each)]:
        dashed = short.replace("_", "-")
        meant = [each for each in names if each.startswith(dashed)]
        if dashed in names or meant == ["--help"] or any(it.startswith(dashed) for it in later):
            continue  # an option that this torch does not have yet makes it ambiguous
        value = "" if BY_NAME[name].kind is None else f"={SOME_VALUES.get(name, 1)}"
        if len(meant) > 1:
            assert refused(f"{short}{value} x.py") == f"{dashed} is ambiguous: it could be " + (
                ", ".join(each for each in TORCHRUNS if each in meant)
            )
        else:
            clear += 1
            assert parse(f"{short}{value} x.py") == parse(f"{name}{value} x.py")
    assert clear > 100


@pytest.mark.parametrize(
    ("line", "dest", "value"),
    [
        ("--nproc 2 x.py", "nproc_per_node", "2"),
        ("--rdzv-end=a:1 x.py", "rdzv_endpoint", "a:1"),
        ("--max-rest 3 x.py", "max_restarts", 3),
        ("--standa x.py", "standalone", True),
    ],
)
def test_common_abbreviations_of_torchruns_options(line, dest, value):
    """As they stand in scripts."""
    assert getattr(parse(line), dest) == value


def test_our_own_options_are_written_out():
    """A new one of ours must never change what a command line means."""
    assert "unknown option --ft-rank-h; did you mean" in refused("--ft-rank-h 3 x.py")
    assert "unknown option --term-t; did you mean --term-timeout?" in refused("--term-t 3 x.py")


def test_help_can_be_abbreviated(capsys):
    """Torchrun has no --help-all, so that this is not ambiguous."""
    with pytest.raises(SystemExit):
        parse("--hel")

    assert capsys.readouterr().out.startswith("usage: ft_launcher")


def test_the_version_is_printed_and_nothing_is_started(capsys):
    """No script is needed."""
    assert main(["--version"]) == 0

    assert capsys.readouterr().out == f"ft_launcher (holdfast) {__version__}\n"


@pytest.mark.parametrize("words", [["--version"], ["--print-config", "train.py"]])
def test_what_a_full_disk_does_not_take_is_an_error_of_one_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        monkeypatch.setattr("sys.stdout", full)
        assert main(words) == 1

    assert capfd.readouterr().err == "ft_launcher: error: stdout: No space left on device\n"


def test_the_command_line_wins_over_the_environment():
    """Even over a variable that could not be used."""
    result = parse("--max-restarts 3 x.py", {"PET_MAX_RESTARTS": "many"})

    assert result.max_restarts == 3
    assert result.origins["max_restarts"] == "command line"


def test_a_switch_in_the_environment_is_a_number():
    """The rule of torchrun: 0 is off, other numbers are on."""
    assert parse("x.py", {"PET_STANDALONE": "1"}).standalone is True
    assert parse("x.py", {"PET_STANDALONE": "0"}).standalone is False
    assert parse("--standalone x.py", {"PET_STANDALONE": "0"}).standalone is True
    assert refused("x.py", {"PET_STANDALONE": "yes"}) == (
        "PET_STANDALONE: 'yes' cannot be used; it takes 0 or 1"
    )


def test_a_bad_variable_is_named():
    """The variable and not the option that nobody gave."""
    assert refused("x.py", {"PET_MAX_RESTARTS": "many"}) == (
        "PET_MAX_RESTARTS: 'many' cannot be used; it takes a whole number of restarts >= 0"
    )


# ------------------------------------------------------------------ spellings
@pytest.mark.parametrize(
    "spelling",
    [
        "--ft-rank-section-timeouts",
        "--ft-rank_section_timeouts",
        "--ft_rank_section_timeouts",
        "--ft-rank_section-timeouts",
    ],
)
@pytest.mark.parametrize("separator", ["=", " "])
def test_dashes_and_underscores_are_the_same(spelling, separator):
    """In every mixture, with the value in the same word or the next."""
    result = parse(f"{spelling}{separator}step:3 x.py")

    assert result.ft_rank_section_timeouts == "step:3"
    assert result.warnings == []


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.kind], ids=lambda o: o.name)
def test_every_spelling_of_every_option_is_known(option):
    """Those listed for argparse are understood by the walk over words, too."""
    for name in (option.name, *option.twins):
        for spelling in spellings(name):
            with pytest.raises(UsageError, match="needs a value"):
                parse_args([spelling], {})


@pytest.mark.parametrize("words", ["-r 3", "-r3", "-r=3", "--redirects 3", "--redirects=3"])
def test_one_letter_options_take_their_value_in_every_way(words):
    """As argparse has it."""
    assert parse(f"{words} x.py").redirects == "3"


def test_the_last_of_several_counts():
    """As everywhere."""
    assert parse("--max-restarts 1 --max_restarts=2 x.py").max_restarts == 2


@pytest.mark.parametrize("field", SETTINGS)
def test_every_field_of_the_configuration_has_an_option(field):
    """With the dashes of its name, and with the underscores."""
    option = BY_NAME[f"--ft-{field.replace('_', '-')}"]

    assert option.field == field
    assert option.dest == f"ft_{field}"


# ------------------------------------------------------------------ the script
word = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
flag_like = st.sampled_from(["--max", "--nnodes", "-m", "--", "--help", "-r3", "--max-restarts=x"])


@given(rest=st.lists(word | flag_like))
def test_what_follows_the_script_comes_back_word_for_word(rest):
    """Whatever it is, help and our own options included; but two dashes end the options."""
    result = parse_args(["--max-restarts", "2", "train.py", *rest], {})

    assert result.training_script == "train.py"
    assert result.training_script_args == (rest[1:] if rest[:1] == ["--"] else rest)
    assert result.max_restarts == 2
    assert result.nnodes == "1:1"


@pytest.mark.parametrize("script", ["--nnodes", "-x", "train.py", ""])
def test_two_dashes_end_the_options(script):
    """The next word is the script, whatever it looks like."""
    result = parse_args(["--max-restarts", "2", "--", script, "--", "x"], {})

    assert (result.training_script, result.training_script_args) == (script, ["--", "x"])


@pytest.mark.parametrize(
    "line", ["s --", "s -- x", "s -- -- x", "s x -- y", "-- s -- x", "-- -- s", "-m s -- --x"]
)
def test_two_dashes_after_the_script_mean_what_they_mean_to_torchrun(line):
    """A script that gets dashes which it would not get there refuses the words after them."""
    theirs = get_args_parser().parse_args(line.split())
    ours = parse(line)
    again = parse_args(torchrun_words(line.split()), {})

    for result in (ours, again):
        assert result.training_script == theirs.training_script
        assert result.training_script_args == theirs.training_script_args


def test_modules_and_programs_are_followed_by_their_arguments():
    """Like scripts."""
    module = parse("-m pkg.mod --max 3 -m")
    program = parse("--no-python ./bin --nnodes 9")

    assert (module.module, module.training_script) == (True, "pkg.mod")
    assert module.training_script_args == ["--max", "3", "-m"]
    assert (program.no_python, program.training_script) == (True, "./bin")
    assert program.training_script_args == ["--nnodes", "9"]


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--max-restrats 3 x.py", "unknown option --max-restrats; did you mean --max-restarts?"),
        ("--max_restrat=3 x.py", "unknown option --max_restrat; did you mean --max-restarts?"),
        (
            "--nproc-per-nodes 3 x.py",
            "unknown option --nproc-per-nodes; did you mean --nproc-per-node?",
        ),
        (
            "--ft-rank-hartbeat-timeout 3 x.py",
            "unknown option --ft-rank-hartbeat-timeout; did you mean --ft-rank-heartbeat-timeout?",
        ),
        ("--zzzzzzzz x.py", "unknown option --zzzzzzzz"),
        ("-x x.py", "unknown option -x"),
        ("-mx x.py", "unknown option -mx"),
        (
            "--max-restarts x.py",
            "--max-restarts: 'x.py' cannot be used; it takes a whole number of restarts >= 0",
        ),
        (
            "--max_restarts=-1 x.py",
            "--max_restarts: '-1' cannot be used; it takes a whole number of restarts >= 0",
        ),
        (
            "--node-rank -1 x.py",
            "--node-rank: '-1' cannot be used; it takes a whole number >= 0",
        ),
        (
            "--nnodes 2:1 x.py",
            (
                "--nnodes: '2:1' cannot be used; it takes a number of nodes, or MIN:MAX with "
                "0 < MIN <= MAX"
            ),
        ),
        (
            "--nproc-per-node many x.py",
            "--nproc-per-node: 'many' cannot be used; it takes a number of ranks, auto, cpu or gpu",
        ),
        (
            "--start-method x x.py",
            "--start-method: 'x' cannot be used; it takes spawn, fork or forkserver",
        ),
        (
            "--signals-to-handle SIGKILL x.py",
            (
                "--signals-to-handle: 'SIGKILL' cannot be used (SIGKILL cannot be handled); "
                "it takes names of signals separated by commas"
            ),
        ),
        (
            "--ft-rank_heartbeat_timeout soon x.py",
            (
                "--ft-rank_heartbeat_timeout: 'soon' cannot be used; it takes a number of seconds "
                "> 0, or null for no timeout"
            ),
        ),
        (
            "--ft-storage-health-check-path data x.py",
            (
                "--ft-storage-health-check-path: 'data' cannot be used; it takes absolute paths, "
                "separated by commas"
            ),
        ),
        ("--standalone=1 x.py", "--standalone is a switch and takes no value, got '1'"),
        (
            "--log-dir --tee",
            (
                "--log-dir needs a value: it takes text; for one that starts with a dash write "
                "--log-dir=--tee"
            ),
        ),
        ("--log-dir", "--log-dir needs a value: it takes text"),
        (
            "--max-restarts 3",
            "no script to run; usage: ft_launcher [options] script.py [arguments of the script]",
        ),
        ("--no-python -m x", "--no-python and --module exclude each other: a module needs python"),
    ],
)
def test_a_mistake_is_answered_in_one_line(line, text):
    """What was written, what is wrong with it, and what is accepted."""
    assert refused(line) == text


@pytest.mark.parametrize("text", ["4", "0:4", "0:3,", "0:3,1", "a:1", "0:3;1:1", "٣", "-1", ""])
@pytest.mark.parametrize("option", ["--tee", "--redirects"])
def test_streams_that_are_none_are_refused(option, text):
    """With the two forms there are."""
    with pytest.raises(UsageError, match=r"or such numbers by local rank, as in 0:3,11:1"):
        parse_args([f"{option}={text}", "x.py"], {})


# ------------------------------------------------------------------ older dialects
@pytest.mark.parametrize(
    ("line", "dest", "value", "warning"),
    [
        (
            "--ft-param-rank_heartbeat_timeout 9",
            "ft_rank_heartbeat_timeout",
            "9",
            (
                "--ft-param-rank_heartbeat_timeout is an old spelling, write "
                "--ft-rank-heartbeat-timeout"
            ),
        ),
        (
            "--ft-param-storage-healthcheck-path=/x",
            "ft_storage_healthcheck_path",
            "/x",
            (
                "--ft-param-storage-healthcheck-path is an old spelling, write "
                "--ft-storage-health-check-path"
            ),
        ),
        (
            "--fault-tol-cfg-path=ft.yaml",
            "ft_cfg_path",
            "ft.yaml",
            "--fault-tol-cfg-path is an old spelling, write --ft-cfg-path",
        ),
        (
            "--ignore-missing-fault-tol-cfg",
            "ft_ignore_missing_cfg",
            True,
            "--ignore-missing-fault-tol-cfg is an old spelling, write --ft-ignore-missing-cfg",
        ),
        (
            "--ft-max-no-progress-restarts 4",
            "ft_max_no_progress_cycles",
            "4",
            "--ft-max-no-progress-restarts is an old spelling, write --ft-max-no-progress-cycles",
        ),
    ],
)
def test_an_old_spelling_works_with_one_warning(line, dest, value, warning):
    """The warning names the new one; saying it twice does not warn twice."""
    result = parse(f"{line} {line} x.py")

    assert getattr(result, dest) == value
    assert result.warnings == [warning]


def test_old_variables_work_with_one_warning():
    """Unless the command line says otherwise, or they are empty."""
    environ = {"FAULT_TOL_CFG_PATH": "ft.yaml", "FT_LAUNCHER_LOGLEVEL": "DEBUG"}
    result = parse("x.py", environ)

    assert (result.ft_cfg_path, result.ft_log_level) == ("ft.yaml", "DEBUG")
    assert result.warnings == [
        "FAULT_TOL_CFG_PATH is an old name, write --ft-cfg-path",
        "FT_LAUNCHER_LOGLEVEL is an old name, write --ft-log-level",
    ]
    given = parse("--ft-cfg-path a.yaml --ft-log-level info x.py", environ)
    assert (given.ft_cfg_path, given.ft_log_level, given.warnings) == ("a.yaml", "info", [])
    assert parse("x.py", {"FAULT_TOL_CFG_PATH": ""}).ft_cfg_path is None


def test_the_debug_switch_of_the_environment_is_obeyed():
    """Unless the command line gives a level."""
    assert parse("x.py", {"NVRX_LOG_DEBUG": "1"}).ft_log_level == "debug"
    assert parse("x.py", {"NVRX_LOG_DEBUG": "0"}).ft_log_level is None
    assert parse("--ft-log-level error x.py", {"NVRX_LOG_DEBUG": "1"}).ft_log_level == "error"


def test_torchruns_shutdown_timeout_stands_in_for_ours():
    """From the option or from torch's variable, unless --term-timeout is given."""
    assert parse("x.py").term_timeout == 1800.0
    assert parse("--shutdown-timeout 7 x.py").term_timeout == 7.0
    assert parse("x.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}).term_timeout == 8.0
    assert parse("--shutdown-timeout 7 --term-timeout 9 x.py").term_timeout == 9.0


# ------------------------------------------------------------------ command lines of clients
COMMAND_LINES = {
    "Megatron-LM": (
        (
            "--nproc_per_node 8 --nnodes 1 --master_addr 10.0.0.1 --master_port 6000 --node_rank 0 "
            "--log-dir /logs --tee 0:3,7:3 --redirects 3 --max-restarts=3 pretrain.py --nnodes 4 -m"
        ),
        {"nproc_per_node": "8", "master_port": 6000, "tee": "0:3,7:3", "max_restarts": 3},
        0,
    ),
    "Megatron-LM without python": (
        "--nproc_per_node 8 --max-restarts=3 --no-python nsys profile python pretrain.py",
        {"no_python": True, "training_script": "nsys"},
        0,
    ),
    "Megatron-LM, fault tolerance": (
        (
            "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420 "
            "--ft-param-rank_out_of_section_timeout=300 pretrain.py"
        ),
        {
            "ft_rank_section_timeouts": "setup:600,step:180,checkpointing:420",
            "ft_rank_out_of_section_timeout": "300",
        },
        2,
    ),
    "Megatron-Bridge": (
        (
            "--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:29500 --nnodes=1 --nproc-per-node=2 "
            "--ft-rank_section_timeouts=setup:600,step:180 --ft-rank_out_of_section_timeout=300 "
            "--monitor-interval=5 --max-restarts=3 --ft-restart-policy=any-failed -m pytest -o x -v"
        ),
        {"rdzv_endpoint": "127.0.0.1:29500", "monitor_interval": 5.0, "module": True},
        0,
    ),
    "NeMo-Run": (
        (
            "--ignore-missing-fault-tol-cfg --rdzv-backend c10d --rdzv-endpoint host:29500 "
            "--rdzv-id 77 --nnodes 1 --nproc-per-node 8 --node-rank 0 --tee 3 --no-python run x"
        ),
        {"rdzv_id": "77", "tee": "3", "ft_ignore_missing_cfg": True},
        1,
    ),
    "NeMo-Run with arguments": (
        (
            "--ft-workload_check_interval 10 --ft-initial_rank_heartbeat_timeout 1200 "
            "--ft-rank_heartbeat_timeout 600 --ft-rank_termination_signal SIGUSR1 "
            "--ft-log_level INFO --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint host:29500 "
            "--rdzv-id 7 --nnodes 1 --nproc-per-node 8 --node-rank 0 --tee 3 train.py"
        ),
        {"ft_rank_termination_signal": "SIGUSR1", "ft_log_level": "INFO", "max_restarts": 2},
        0,
    ),
    "older NeMo-Run": (
        (
            "--ft-param-workload_check_interval 10 --ft-param-rank_termination_signal SIGTERM "
            "--ft-param-log_level DEBUG train.py"
        ),
        {"ft_rank_termination_signal": "SIGTERM"},
        3,
    ),
    "NeMo-Framework-Launcher": (
        (
            "--fault-tol-cfg-path=/cfg.yaml --ignore-missing-fault-tol-cfg --nnodes 1 "
            "--nproc_per_node 8 --max-restarts=3 train.py"
        ),
        {"ft_cfg_path": "/cfg.yaml", "ft_ignore_missing_cfg": True},
        2,
    ),
    "NeMo-RL": (
        (
            "--ft-cfg-path ft_config.yaml --ft-rank-heartbeat-timeout 450 "
            "--ft-initial-rank-heartbeat-timeout 1200 --max-restarts 5 run.py --config x"
        ),
        {"ft_rank_heartbeat_timeout": "450", "ft_cfg_path": "ft_config.yaml"},
        0,
    ),
    "AWS": (
        (
            "--nnodes=2:2 --nproc_per_node 8 --max-restarts=20 --rdzv_backend=c10d "
            "--rdzv_endpoint=h:1 --rdzv-conf=is_host=1 --ft-restart-policy=min-healthy "
            "--ft-rank-heartbeat-timeout=900 --ft-initial-rank-heartbeat-timeout=1200 "
            "--monitor-interval=5 train.py"
        ),
        {"nnodes": "2:2", "rdzv_conf": "is_host=1", "ft_restart_policy": "min-healthy"},
        0,
    ),
}


@pytest.mark.parametrize("client", COMMAND_LINES)
def test_command_lines_of_existing_clients_are_understood(client):
    """Word for word as they are generated, with a warning for each old spelling and none else."""
    line, expected, warnings = COMMAND_LINES[client]
    result = parse(line)

    for dest, value in expected.items():
        assert getattr(result, dest) == value, dest
    assert len(result.warnings) == warnings


HEAD = """
attribution-analysis-backend attribution-endpoint attribution-export-url
attribution-llm-api-key-file attribution-llm-base-url attribution-llm-model attribution-log-level
attribution-startup-timeout attribution-stop-action cfg-path check-remaining-processes
checkpoint-iteration-file cycle-info-dir cycle-info-job-id enable-dist-storage-healthcheck
enable-log-server enable-nic-healthcheck enable-nic-monitor gpu-memory-poll-interval
gpu-memory-reclaim-timeout gpu-memory-tolerance-mb ignore-missing-cfg
initial-rank-heartbeat-timeout install-exception-hook link-down-path-template
link-state-path-template log-aggregator-count log-leaf-max-queue-chunks log-level
log-server-graceful-shutdown-timeout log-server-log-prefix log-server-port max-no-progress-cycles
min-progress-iterations no-restart-exit-code node-health-check-endpoint node-health-check-interval
numa-bind-strict nvrx-logfile pci-topo-file per-cycle-applog-prefix rank-heartbeat-timeout
rank-out-of-section-timeout rank-section-timeouts rank-termination-signal rdzv-impl
restart-check-interval restart-policy safety-factor segment skip-section-response
storage-health-check-path workload-check-interval log-server-log use-infra-group-rank attrsvc-host
attrsvc-port max-no-progress-restarts base-logfile
"""


@pytest.mark.parametrize("name", HEAD.split())
def test_every_ft_option_of_every_generation_is_known(name):
    """Under its own name or as an old spelling."""
    assert f"--ft-{name}" in {**BY_NAME, **FORMER}


# ------------------------------------------------------------------ argparse's view of the table
@pytest.mark.parametrize("client", COMMAND_LINES)
def test_the_argparse_parser_reads_a_line_the_same_way(client):
    """Programs that extend it see the same values."""
    words = COMMAND_LINES[client][0].split()
    with mock.patch.dict(os.environ, {"PET_ROLE": "trainer"}, clear=True):
        theirs = vars(get_args_parser().parse_args(words))
        ours = vars(parse_args(words))

    assert theirs == {key: ours[key] for key in theirs}
    assert theirs["role"] == "trainer"


def test_the_argparse_parser_answers_a_mistake_in_one_line(capsys):
    """Without the usage of a hundred options above it."""
    with mock.patch.dict(os.environ, clear=True), pytest.raises(SystemExit) as caught:
        get_args_parser().parse_args(["--max-restarts", "x", "train.py"])

    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "ft_launcher: error: argument --max-restarts/--max_restarts: 'x' cannot be used; "
        "it takes a whole number of restarts >= 0\n"
    )


# ------------------------------------------------------------------ help
def help_of(words: list[str], capsys, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as caught:
        parse_args(words, {"PET_MAX_RESTARTS": "bad"})

    assert caught.value.code == 0
    return capsys.readouterr().out


def shown_options(text: str) -> list[str]:
    """Names of options that begin an entry of help."""
    return re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("word", ["--help", "--help-all", "--help_all"])
def test_help_fits_its_columns_and_shows_each_option_once_in_its_group(word, capsys, monkeypatch):
    """100 columns however wide the terminal."""
    text = help_of(["--max-restarts", "3", word], capsys, monkeypatch)
    shown = [each for each in shown_options(text) if each not in ("--help", "--help-all")]

    assert max(map(len, text.splitlines())) <= 100
    assert len(shown) == len(set(shown))
    for title, sentence in GROUPS.items():
        heading = f"\n{title}:\n  {sentence}\n"
        has_some = title == "Help" or any(BY_NAME[name].group == title for name in shown)
        assert (heading in text) is has_some


def test_help_shows_the_twelve_options_that_most_jobs_need_and_help_all_every_one(
    capsys, monkeypatch
):
    """On two screens, not nine; the rest is named, and torchrun's options are all accepted."""
    short = help_of(["-h"], capsys, monkeypatch)
    whole = help_of(["--help-all"], capsys, monkeypatch)
    prints = {"--print-config", "--print-config-all", "--print-completion"}
    helps = {"--help", "--help-all", "--version", *prints}

    assert len(COMMON) == 12
    assert set(shown_options(short)) == {*COMMON, *helps}
    assert set(shown_options(whole)) == {*(option.name for option in OPTIONS), *helps}
    assert len(short.splitlines()) < 100
    assert f"--help-all has the other {len(OPTIONS) - 12 - 4} options" in short
    assert "--help-all has" not in whole
    assert [name for name, _ in described() if name not in whole] == []
    assert all(BY_NAME[name].has_effect for name in COMMON)


def test_a_program_that_extends_the_parser_has_both_kinds_of_help(capsys):
    """``get_args_parser`` is torchrun's name for it."""
    for word, is_whole in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit) as caught:
            get_args_parser().parse_args([word])
        assert caught.value.code == 0
        assert ("--ft-log-server-port" in capsys.readouterr().out) is is_whole


def test_help_gives_unit_default_and_reason():
    """On the option itself."""
    text = " ".join(make_parser({}).format_help().split())

    assert (
        "--ft-rank-heartbeat-timeout SECONDS Longest healthy time between two heartbeats of a "
        "rank. Default: 2700 s (longer than any checkpoint that is written between two of them)."
    ) in text


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_help_of_every_option_has_its_unit_and_its_default(option):
    """``none`` where there is none, ``off`` of a switch; seconds and memory with their unit."""
    actions = make_parser({}, shows_all=True)._actions
    (action,) = [each for each in actions if option.name in each.option_strings]
    if option.group == "Help":
        return
    default = re.search(r" Default: ([^ .]+(?:\.\d+)?(?: s| MiB| MB)?)[ .,]", f"{action.help} ")
    assert default is not None, action.help
    if option.kind is None:
        assert (action.metavar, default[1]) == (None, "off")
        return
    assert action.metavar == option.kind.unit
    assert option.kind.unit.upper() != "VALUE"
    unit = {"SECONDS": " s", "MIB": " MiB", "MEGABYTES": " MB"}.get(option.kind.unit, "")
    assert default[1] == "none" or default[1].endswith(unit)


def test_every_option_is_described():
    """In one known group, by a sentence without its full stop."""
    for option in OPTIONS:
        assert option.group in GROUPS, option.name
        assert option.help[0].isupper() or option.help.startswith("torch"), option.name
        assert not option.help.endswith("."), option.name


def test_the_effective_configuration_says_where_each_value_is_from(tmp_path):
    """Default, file, environment or command line."""
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {safety_factor: 3, rank_heartbeat_timeout: null}")
    args = parse(
        f"--print-config --ft-cfg-path {path} --ft-log_level=warn --ft-rank-section-timeouts a:1",
        {"PET_MAX_RESTARTS": "3", "NVRX_LOG_DEBUG": "1"},
    )
    text = " ".join(describe_config(args).split())

    assert args.training_script is None
    for line in (
        "--nnodes 1:1 default",
        "--max-restarts 3 environment, PET_MAX_RESTARTS",
        f"--ft-safety-factor 3 file {path}",
        f"--ft-rank-heartbeat-timeout null file {path}",
        "--ft-rank-section-timeouts a:1 command line",
        "--ft-log-level warning command line",
        "--ft-learned-timeout-floor 30 default",
    ):
        assert line in text


def test_the_short_configuration_shows_what_is_set_and_by_what(tmp_path):
    """Flag, file or environment, each beside the default; the rest is --print-config-all's."""
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {safety_factor: 3}")
    words = f"--ft-cfg-path {path} --max-restarts 0 --monitor-interval 3 --rdzv-conf secret=abc"
    args = parse(f"--print-config {words}", {"PET_NNODES": "2"})
    lines = [" ".join(line.split()) for line in describe_config(args, shows_all=False).splitlines()]

    assert [line for line in lines if line.startswith("--")] == [
        "--nnodes 2 instead of 1:1 environment, PET_NNODES",
        "--rdzv-conf secret=*** instead of none command line",
        "--max-restarts 0 as by default command line",
        f"--ft-cfg-path {path} instead of null command line",
        f"--ft-safety-factor 3 instead of 5 file {path}",
        "--monitor-interval 3 instead of 0.3 command line; without effect",
    ]
    assert "Stopping:" not in lines  # nothing of that group is set
    assert lines[-1].startswith("All other options have their defaults: --print-config-all")


@pytest.mark.parametrize(("words", "is_whole"), [("", False), ("-all", True)])
def test_both_ways_to_print_the_configuration_start_nothing(words, is_whole, capsys):
    """Without a script, too."""
    assert main([f"--print-config{words}", "--max-restarts=3"]) == 0
    text = capsys.readouterr().out

    assert re.search(r"--max-restarts +3 ", text)
    assert ("--ft-learned-timeout-floor" in text) is is_whole


def test_what_is_shown_can_be_given_again():
    """Values are printed as a command line takes them."""
    first = describe_config(parse("--print-config --tee 0:3,11:1 --ft-rank-section-timeouts a:1"))
    words = ["--print-config"]
    for line in first.splitlines():
        if line.startswith("  --"):
            name, value, _ = line.split(maxsplit=2)
            if BY_NAME[name].kind is not None and value not in ("null", "none"):
                words.append(f"{name}={value}")
    again = parse_args(words, {})

    assert FaultToleranceConfig.from_args(again).rank_section_timeouts == {"a": 1.0}
    assert again.tee == "0:3,11:1"
    values = [line.split()[1] for line in first.splitlines() if line.startswith("  --")]
    values_again = [
        line.split()[1] for line in describe_config(again).splitlines() if line.startswith("  --")
    ]
    assert values == values_again


def test_a_usage_error_is_one_of_ours():
    """So that a program can catch everything that is raised on purpose."""
    assert issubclass(UsageError, HoldfastError)
