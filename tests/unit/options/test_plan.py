"""From a command line and an environment to a plan, on machines of every kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from holdfast.base import facts
from holdfast.base.pure.codec import decode, encode
from holdfast.errors import ConfigError
from holdfast.health.messages import TO_HEALTH, ConfigureHealth
from holdfast.node.job_part import make_rules
from holdfast.node.pure.node import SWEEP_LIMIT_S, UNKILLABLE_AFTER_S
from holdfast.options.arguments import UsageError, parse_args
from holdfast.options.plan import LaunchPlan, make_plan
from holdfast.options.values import Size, Unacceptable


@dataclass
class Node:
    """A machine that a test makes up."""

    cpus: int = 6
    files: int = 4096
    terminal: bool = True
    own: str = "127.0.0.1"
    gpus: int | None = 0
    prefixes: object = ()
    unbound: str | None = None
    paths: set[str] = field(default_factory=lambda: {"train.py"})
    contents: dict[str, str] = field(default_factory=dict)
    programs: set[str] = field(default_factory=lambda: {"nsys"})
    modules: set[str] = field(default_factory=lambda: {"pkg"})

    def cpu_count(self):
        return self.cpus

    def gpu_count(self, environ):
        return self.gpus

    def path_exists(self, path):
        return path in self.paths

    def program_exists(self, name, environ):
        return name in self.programs

    def module_exists(self, name):
        return name.partition(".")[0] in self.modules

    def plug_in_names(self, group):
        return {"site-store"} if group == "torchrun.handlers" else set()

    def numa_nodes(self):
        return None

    def torchs_numa_prefixes(self, mode, nproc):
        if isinstance(self.prefixes, Exception):
            raise self.prefixes
        return self.prefixes

    def why_not_bound(self, prefix, environ):
        return self.unbound

    def script_digest(self, path, *, program):
        return self.contents.get(path)

    def loopback(self):
        return self.own

    def has_terminal(self):
        return self.terminal

    def open_files_max(self):
        return self.files

    def absolute(self, path):
        return path if path.startswith("/") else f"/here/{path.removeprefix('./')}"

    def random_id(self):
        return "random"


def plan(line: str = "train.py", environ: dict[str, str] | None = None, **node) -> LaunchPlan:
    environ = environ or {}
    return make_plan(parse_args(line.split(), environ), environ, Node(**node))


def refused(line: str, environ: dict[str, str] | None = None, **node) -> str:
    with pytest.raises(UsageError) as caught:
        plan(line, environ, **node)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------ the command of a rank
def test_a_script_is_run_by_this_python_unbuffered():
    """As torchrun does it, so that output is not lost at a kill."""
    result = plan("train.py --max 3")

    assert result.command_for(0) == [sys.executable, "-u", "train.py", "--max", "3"]
    assert result.name == "train.py"
    assert result.signal_groups is False


def test_a_module_is_run_by_name():
    """Only its top package is looked for."""
    result = plan("-m pkg.train --max 3")

    assert result.command_for(0) == [sys.executable, "-u", "-m", "pkg.train", "--max", "3"]


def test_a_program_is_run_as_it_is_and_signalled_with_its_children():
    """It may be a shell, which passes nothing on."""
    result = plan("--no-python nsys profile python train.py")

    assert result.command_for(0) == ["nsys", "profile", "python", "train.py"]
    assert result.signal_groups is True


def test_a_run_path_script_finds_its_own_arguments(tmp_path):
    """Through runpy, as __main__; it takes precedence over --no-python."""
    script = tmp_path / "train.py"
    script.write_text("import sys; print(__name__, sys.argv)")
    result = plan(f"--run-path --no-python {script} --max 3", paths={str(script)})

    done = subprocess.run(result.command_for(0), capture_output=True, text=True, check=True)
    assert done.stdout == f"__main__ {[str(script), '--max', '3']}\n"


def test_another_python_can_be_asked_for():
    """Its modules are not looked for, because this one has others."""
    environ = {"PYTHON_EXEC": "python9"}
    result = plan("-m nowhere", environ, programs={"python9"})

    assert result.command_for(0) == ["python9", "-u", "-m", "nowhere"]
    assert refused("train.py", environ) == "PYTHON_EXEC: no such program: 'python9'"


def test_the_local_rank_is_put_where_its_name_stands():
    """Nothing else in a command is touched."""
    result = plan(
        "train${local_rank}.py --dev ${local_rank} $local_rank $$ ${rank}", paths={"train0.py"}
    )

    assert result.command_for(11)[2:] == [
        "train11.py",
        "--dev",
        "11",
        "$local_rank",
        "$$",
        "${rank}",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "nowhere.py",
            "no such script: 'nowhere.py'; give -m before a module, --no-python before a program",
        ),
        (
            "--run-path /nowhere.py",
            "no such script: '/nowhere.py'; give -m before a module, --no-python before a program",
        ),
        ("-m nowhere.train", "no such module: 'nowhere.train'"),
        ("--no-python ./train.py", "no such program: './train.py'"),
    ],
)
def test_what_cannot_be_started_is_found_before_anything_is(line, text):
    """One line that says what was looked for."""
    assert refused(line) == text


def test_python_reads_a_script_named_dash_from_stdin_and_its_restarts_start_plainly():
    """As under torchrun: a shell's here-document; a parked interpreter would have no script."""
    result = plan("--max-restarts 3 - --steps 5")
    assert result.command_for(0)[1:] == ["-u", "-", "--steps", "5"]
    assert (result.warm, result.why_cold) == (None, "the script is read from stdin")


# ------------------------------------------------------------------ size
@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [("3", 0, 3), ("cpu", 4, 6), ("gpu", 4, 4), ("auto", 4, 4), ("auto", 0, 6)],
)
def test_ranks_are_counted_as_asked(text, gpus, expected):
    """A number; CPUs; GPUs; GPUs where there are any, else CPUs."""
    assert plan(f"--nproc-per-node {text} train.py", gpus=gpus).nproc_per_node == expected


def test_gpus_that_are_not_there_are_missed():
    """With the variable that may have hidden them."""
    assert refused("--nproc-per-node gpu train.py") == (
        "--nproc-per-node: 'gpu' cannot be used; this node shows no GPU"
    )
    assert refused("--nproc-per-node gpu train.py", {"CUDA_VISIBLE_DEVICES": ""}).endswith(
        "this node shows no GPU (CUDA_VISIBLE_DEVICES=)"
    )


@pytest.mark.parametrize("text", ["gpu", "auto"])
def test_gpus_that_cannot_be_counted_are_not_guessed(text):
    """One rank per CPU would be far from what was meant."""
    assert "give their number" in refused(f"--nproc-per-node {text} train.py", gpus=None)


def test_jobs_of_several_nodes_know_where_to_meet():
    """As given, or torchrun's default; a job of one node meets nobody."""
    assert plan("train.py").meeting is None
    given = plan("--nnodes 2:4 --rdzv-endpoint gpu-01:4000 --rdzv-conf is_host=1 train.py").meeting
    default = plan("--nnodes 2 train.py").meeting

    assert (given.place.host, given.place.port, given.place.is_host) == ("gpu-01", 4000, True)
    assert (given.nodes.min_nodes, given.nodes.max_nodes) == (2, 4)
    where = default.place.host, default.place.port, default.place.is_host
    assert where == ("127.0.0.1", 29500, None)


def test_a_fixed_node_rank_says_who_hosts_the_store():
    """By torchrun's static way: node 0 is the one at the master's address."""
    static = "--rdzv-backend static --nnodes 2 --node-rank 0 --master-addr n0 --master-port 5000"
    first = plan(f"{static} train.py").meeting
    second = plan("--nnodes 2 --node-rank 1 --master-addr n0 --master-port 5000 train.py").meeting

    assert (first.place.host, first.place.port, first.place.is_host, first.infra_rank) == (
        "n0",
        5000,
        True,
        0,
    )
    assert (second.place.is_host, second.infra_rank) == (False, 1)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "site-store"])
def test_another_backend_is_told_what_torch_would_tell_it(backend):
    """The endpoint is its own business."""
    line = f"--rdzv-backend {backend} --rdzv-endpoint etcd-1:2379 --rdzv-conf protocol=https"
    other = plan(f"{line} --nnodes 2:4 train.py").meeting.place.other

    assert (other.name, other.endpoint) == (backend, "etcd-1:2379")
    assert (other.min_nodes, other.max_nodes, other.conf) == (2, 4, {"protocol": "https"})


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_the_backends_that_are_ours_are_one(backend):
    """A store that a launcher hosts."""
    assert plan(f"--rdzv-backend {backend} --nnodes 2 train.py").meeting.place.other is None


@pytest.mark.parametrize("option", ["--nnodes 1", "--nnodes 1:1", "--standalone"])
def test_who_asks_for_one_node_of_an_allocation_gets_it(option: str) -> None:
    """In a batch script of four nodes; whoever says nothing is asked."""
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}

    assert plan(f"{option} train.py", batch).max_nodes == 1
    assert "give --nnodes 1 or --standalone" in refused("train.py", batch)


@pytest.mark.parametrize("nnodes", ["1", "2"])
def test_a_backend_that_nobody_registered_is_refused(nnodes):
    """With those that there are."""
    assert refused(f"--rdzv-backend ectd --nnodes {nnodes} train.py") == (
        "--rdzv-backend: 'ectd' cannot be used; it takes c10d, static, etcd, etcd-v2, or one that "
        "an installed package registers as an entry point of torchrun.handlers (here: "
        "site-store)"
    )


def test_a_time_of_the_meeting_that_is_no_number_is_told_with_its_key():
    """Not as Python's words about strings and floats."""
    said = refused("--nnodes 2 --rdzv-conf timeout=abc train.py")
    assert "timeout=abc is not a number of seconds" in said


@pytest.mark.parametrize("conf", ["is_host=maybe", "join_timeout=-1", "timeout=inf", "timeout=nan"])
def test_details_of_the_meeting_are_checked(conf):
    """Named, with what was given."""
    assert conf.partition("=")[2] in refused(f"--nnodes 2 --rdzv-conf {conf} train.py")


POD = {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "2", "HOSTNAME": "job-0"}
SERVICE = {"JOB_SERVICE_NAME": "svc"}


@pytest.mark.parametrize(
    ("line", "index", "expected"),
    [
        ("", "0", ("job-0.svc", True, 0)),
        ("", "1", ("job-0.svc", False, 1)),
        ("--master-addr n0", "1", ("n0", None, 1)),
        ("--rdzv-endpoint n0:1", "0", ("n0", None, 0)),
        ("--rdzv-conf is_host=1", "1", ("job-0.svc", True, 1)),
        ("--node-rank 0", "1", ("job-0.svc", True, 0)),
    ],
)
def test_pods_know_their_number_and_who_hosts_the_store(line, index, expected):
    """Pod 0, whose own name may not lead to it yet; the command line has the last word."""
    pod = {**POD, **SERVICE, "JOB_COMPLETION_INDEX": index, "HOSTNAME": f"job-{index}"}
    meeting = plan(f"{line} train.py", pod).meeting

    assert (meeting.place.host, meeting.place.is_host, meeting.infra_rank) == expected


def test_pods_that_cannot_find_each_other_do_not_start():
    """Each would wait for the others at its own address."""
    assert "JOB_SERVICE_NAME" in refused("train.py", POD)


@pytest.mark.parametrize(
    ("option", "environ", "domain", "segment"),
    [
        ("--ft-segment 2", {"HOLDFAST_NODE_DOMAIN": "rack 7"}, "rack 7", 2),
        ("--ft-segment 2", {}, None, 2),
        ("", {"HOLDFAST_NODE_DOMAIN": "rack 7"}, None, None),
    ],
)
def test_a_node_says_its_domain_where_that_counts(option, environ, domain, segment):
    """Nobody is asked otherwise."""
    meeting = plan(f"--nnodes 4 {option} train.py", environ).meeting
    assert (meeting.domain, meeting.nodes.segment) == (domain, segment)


def test_growth_may_come_at_once():
    """The cool-down is of ft_launcher as of torchrun's plug-in."""
    assert plan("--nnodes 1:2 train.py").meeting.grow_cooldown_s == 30
    line = "--nnodes 1:2 --rdzv-conf grow_cooldown=0 train.py"
    assert plan(line).meeting.grow_cooldown_s == 0


def test_rules_of_restarting_reach_the_leader():
    """All that the command line says about them."""
    line = (
        "--nnodes {} --max-restarts 5 --ft-restart-window 3600 --ft-restart-backoff 2.5 "
        "--ft-max-no-progress-cycles 4 --ft-min-progress-iterations 10 "
        "--ft-checkpoint-iteration-file it.txt --ft-no-restart-exit-code 77 train.py"
    )
    for nodes in (1, 2):
        rules = make_rules(plan(line.format(nodes)))
        assert (rules.max_restarts, rules.restarts_period_s, rules.backoff_s) == (5, 3600.0, 2.5)
        assert (rules.max_no_progress_cycles, rules.min_progress_iterations) == (4, 10)
        assert (rules.reads_iterations, rules.no_restart_exit_code) == (True, 77)
        assert (rules.nodes.max_nodes, rules.is_of_one) == (nodes, nodes == 1)


@pytest.mark.parametrize("grace_s", [0.0, 15.0, 300.0])
def test_the_leader_stays_until_ranks_that_use_all_of_their_grace_have_ended(grace_s):
    """Without it, monitors end the ranks of a launcher a few seconds later."""
    rules = make_rules(plan(f"--nnodes 2 --workers-stop-timeout {grace_s} train.py"))
    assert rules.linger_s >= grace_s + UNKILLABLE_AFTER_S + SWEEP_LIMIT_S


# ------------------------------------------------------------------ the job's name and address
@pytest.mark.parametrize(
    ("line", "run_id"),
    [
        ("train.py", "random"),
        ("--rdzv-id 7 train.py", "7"),
        ("--standalone --rdzv-id 7 train.py", "random"),
        ("--rdzv-endpoint h:1 train.py", "none"),
        ("--nnodes 1:2 train.py", "none"),
    ],
)
def test_a_job_that_nobody_can_join_gets_a_name_of_its_own(line, run_id):
    """Otherwise it has the name that the other nodes know."""
    assert plan(line).run_id == run_id


@pytest.mark.parametrize(("option", "port"), [("", None), ("--master-port 0", None)])
def test_the_port_is_fresh_unless_it_is_given(option, port):
    """Port 0 asks for a fresh one, too."""
    assert plan(f"{option} train.py").master_port is port
    assert plan("--master_port 6000 --master_addr h train.py").master_port == 6000
    assert plan("--master_port 6000 --master_addr h train.py").master_addr == "h"


@pytest.mark.parametrize("line", ["--version", "--print-config", "--print-completion=zsh"])
def test_words_that_start_nothing_are_no_plan(line):
    """``holdfast doctor`` gets them, too."""
    with pytest.raises(UsageError, match="no script to run"):
        plan(line)


# ------------------------------------------------------------------ output
def test_streams_are_known_for_every_rank():
    """One number for all, or a number by rank with any number of digits; 0 where none is given."""
    result = plan("--nproc-per-node 12 --tee 0:3,11:1,40:3 --redirects 2 train.py")

    assert result.tee == {**dict.fromkeys(range(12), 0), 0: 3, 11: 1}
    assert result.redirects == dict.fromkeys(range(12), 2)


def test_output_options_are_carried_over():
    """Filter of ranks, copies of lines, prefix, folder."""
    result = plan(
        "--local-ranks-filter 0,11 --duplicate-stdout-filters a,,b,c --log-dir /logs train.py",
        {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}|"},
    )

    assert result.local_ranks_filter == {0, 11}
    assert result.duplicate_stdout_filters == ("a,b", "c")
    assert result.duplicate_stderr_filters == ()
    assert result.log_line_prefix_template == "${rank}|"
    assert result.log_dir == "/logs"
    assert plan().local_ranks_filter is None
    assert plan().log_line_prefix_template == "[${role_name}${local_rank}]:"


@pytest.mark.parametrize(
    ("line", "variable", "template"),
    [
        ("--log-line-prefix-template ${hostname}: train.py", "${rank}|", "${hostname}:"),
        ("--log-line-prefix-template= train.py", "${rank}|", "${rank}|"),
        ("train.py", "", "[${role_name}${local_rank}]:"),
    ],
)
def test_the_start_of_a_teed_line_is_the_option_s_then_the_variable_s_then_torchrun_s(
    line, variable, template
):
    result = plan(line, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": variable})
    assert result.log_line_prefix_template == template


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("", 0),
        ("--nproc-per-node 4", 0),
        ("--nproc-per-node 4 --local-ranks-filter 2", 2),
        ("--nproc-per-node 4 --local-ranks-filter 1,2", 0),
        ("--nproc-per-node 4 --local-ranks-filter 2,9", 2),
        ("--nproc-per-node 4 --local-ranks-filter 9", 0),
        ("--nproc-per-node 4 --local-ranks-filter 2 --ft-stdin-rank 3", 3),
        ("--ft-stdin-rank 0", 0),
    ],
)
def test_one_rank_reads_stdin_the_one_that_is_named_or_the_only_one_seen_or_the_first(line, rank):
    """Two readers would take words from each other; under torchrun rank 0 could read."""
    assert plan(f"{line} train.py").stdin_rank == rank


def test_a_file_on_stdin_is_for_the_first_rank():
    """Under torchrun it reads it, whichever ranks are shown; another one has to be named."""
    line = "--nproc-per-node 4 --local-ranks-filter 2"
    assert plan(f"{line} train.py", terminal=False).stdin_rank == 0
    assert plan(f"{line} --ft-stdin-rank 2 train.py", terminal=False).stdin_rank == 2


def test_ranks_meet_at_this_host_also_where_its_loopback_has_no_ipv4():
    """By torchrun's name for it: scripts write it before a colon and a port."""
    assert plan().master_addr == "127.0.0.1"
    assert plan(own="::1").master_addr == "localhost"
    assert plan("--master-addr 10.0.0.7 train.py", own="::1").master_addr == "10.0.0.7"


def test_a_launcher_that_may_open_few_files_does_without_monitors_then_without_output():
    """Of 8 ranks with -t 3, each has 4 files of its monitor, and 4 of its output."""
    line = "--nproc-per-node 8 -t 3 train.py"
    found = [plan(line, files=n) for n in (64 + 64, 64 + 63, 64 + 32, 64 + 31, 64)]
    chosen = [(it.monitors_enabled, it.counts_steps, it.n_carried) for it in found]
    assert chosen[:2] == [(True, True, 8), (False, False, 8)]
    assert chosen[2:] == [(False, False, 8), (False, False, 7), (False, False, 0)]
    said = [[text for text in it.warnings if "ulimit" in text] for it in found]
    of_monitors = "the launcher may have 127 open files (ulimit -Hn) and needs 128: hangs of ranks"
    assert said[0] == []
    assert said[1] == [f"{of_monitors} are not found"]
    assert said[3][0].endswith(
        "; the output of local ranks 7 to 7 goes to the console alone, as they write it"
    )


@pytest.mark.parametrize(
    ("line", "n_files"),
    [
        ("", 1),
        ("-r 1", 3),
        ("-t 2", 2),
        ("-r 3 --duplicate-stdout-filters a", 5),
        ("--duplicate-stderr-filters a", 2),
        ("--ft-per-cycle-applog-prefix /l", 2),
    ],
)
def test_files_of_a_ranks_output_are_its_pipes_and_those_that_keep_it(line, n_files):
    """The stream stderr always has a pipe, unless it is a terminal."""
    environ = {"NVRX_DISABLE_RANK_MONITORS": "1"}
    assert plan(f"{line} train.py", environ, files=64 + n_files).n_carried == 1
    assert plan(f"{line} train.py", environ, files=63 + n_files).n_carried == 0


def test_a_rank_that_is_to_read_stdin_must_be_there():
    """The numbers are those of this node."""
    assert refused("--nproc-per-node 2 --ft-stdin-rank 2 train.py") == (
        "--ft-stdin-rank: there is no local rank 2, as this node has 2 ranks; they are counted "
        "from 0"
    )


# ------------------------------------------------------------------ stopping
def test_signals_are_numbers_in_the_order_given():
    """From the option, else from torch's variable, else those of torchrun."""
    usual = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    environ = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR2"}

    assert plan().signals_to_handle == usual
    assert plan("train.py", environ).signals_to_handle == (signal.SIGUSR2,)
    assert plan(
        "--signals-to-handle sigusr1,SIGTERM,SIGUSR1 train.py", environ
    ).signals_to_handle == (signal.SIGUSR1, signal.SIGTERM)
    assert plan("--signals-to-handle= train.py").signals_to_handle == ()
    slip = plan("--signals-to-handle SIGTERM,TERM train.py")
    assert slip.signals_to_handle == (signal.SIGTERM,)
    assert (
        "--signals-to-handle: 'TERM' is left out, as it is not the name of a signal"
        in slip.warnings
    )


def test_timeouts_are_carried_over():
    """For a stop by us, and for a signal to us."""
    result = plan("--workers-stop-timeout 2 --term-timeout 3 train.py")

    assert (result.workers_stop_timeout_s, result.term_timeout_s) == (2.0, 3.0)
    assert (plan().workers_stop_timeout_s, plan().term_timeout_s) == (15.0, 1800.0)
    assert plan("--shutdown-timeout 4 train.py").term_timeout_s == 4.0


# ------------------------------------------------------------------ watching
def test_ranks_are_watched_as_the_file_and_the_options_say(tmp_path):
    """The level of the launcher's own words is the configuration's."""
    path = tmp_path / "ft.yaml"
    path.write_text(
        "fault_tolerance: {safety_factor: 3, log_level: error, max_no_progress_restarts: 1}"
    )
    result = plan(f"--ft-cfg-path {path} --ft-rank-heartbeat-timeout 9 train.py")

    assert (result.ft.safety_factor, result.ft.rank_heartbeat_timeout) == (3.0, 9.0)
    assert result.log_level == 40
    assert [text for text in result.warnings if "is an old name" in text]


def test_a_bad_file_is_an_error_of_its_own(tmp_path):
    """Not one of usage: the command line is fine."""
    with pytest.raises(ConfigError, match="no such file"):
        plan(f"--ft-cfg-path {tmp_path}/none train.py")


@pytest.mark.parametrize(("value", "enabled"), [("1", False), ("true", False), ("0", True)])
def test_watching_can_be_switched_off(value, enabled):
    """By nvidia-resiliency-ext's variable."""
    assert plan("train.py", {"NVRX_DISABLE_RANK_MONITORS": value}).monitors_enabled is enabled
    assert plan().monitors_enabled is True


# ------------------------------------------------------------------ what the user is told
def test_options_whose_work_comes_later_are_named_in_one_line(tmp_path):
    """Wherever they were given, unless they ask for what happens anyway."""
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {attrsvc_host: here, use_infra_group_rank: true}")
    result = plan(
        f"--ft-cfg-path {path} --ft-restart-policy min-healthy --ft-segment=2 "
        "--ft-rdzv-impl barrier --ft-enable-log-server true train.py",
    )

    assert result.warnings == (
        "accepted, but without effect so far: --ft-enable-log-server, --ft-attrsvc-host",
    )


def test_the_number_of_threads_is_said_where_it_is_chosen_for_the_user():
    """For several ranks without OMP_NUM_THREADS; never for one rank."""
    assert plan("--nproc-per-node 2 train.py").warnings == (
        "OMP_NUM_THREADS is not set; each of the 2 ranks gets 1, as with torchrun",
    )
    assert plan("--nproc-per-node 2 train.py", {"OMP_NUM_THREADS": "4"}).warnings == ()
    assert plan().warnings == ()


@pytest.mark.parametrize(
    ("words", "is_doubted"),
    [
        ("--nnodes 2", True),
        ("--nnodes 2 --rdzv-endpoint localhost:29500", False),
        ("--nnodes 2 --master-addr n0", False),
        ("--standalone", False),
    ],
)
def test_several_nodes_that_could_only_meet_on_one_host_are_doubted(words, is_doubted):
    """Without an address every launcher would wait alone on its host until join_timeout."""
    meeting = plan(f"{words} train.py").meeting
    doubts = [text for text in (meeting.warnings if meeting else ()) if "--rdzv-endpoint" in text]

    assert bool(doubts) == is_doubted


def test_old_spellings_are_told():
    """Warnings of the command line come first."""
    assert plan("--ft-param-log_level info train.py").warnings == (
        "--ft-param-log_level is an old spelling, write --ft-log-level",
    )


def test_a_plan_is_not_changed():
    """What was said before the start holds until the end."""
    with pytest.raises(FrozenInstanceError):
        plan().max_restarts = 3


# ------------------------------------------------------------------ facts of this node
def test_cpus_are_those_we_may_run_on():
    """As torchrun counts them for ``--nproc-per-node=cpu``."""
    from torch.distributed.run import determine_local_world_size

    assert facts.cpu_count() == determine_local_world_size("cpu")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 3),
        ("", 0),
        ("0,2", 2),
        (" 1 , 0", 2),
        ("0,-1,1", 1),
        ("0,7,1", 1),
        ("GPU-abc,GPU-def", 2),
        ("MIG-abc,MIG-def", 1),
        ("none", 0),
    ],
)
def test_gpus_are_those_that_cuda_would_show(monkeypatch, visible, expected):
    """The list ends at the first entry that names no device."""
    monkeypatch.setattr(
        os, "listdir", lambda _: ["nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"]
    )
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert facts.gpu_count(environ) == expected


def test_a_node_without_device_nodes_has_no_gpus(monkeypatch):
    """Unless they are of a kind that is not counted."""
    monkeypatch.setattr(os, "listdir", lambda _: ["null"])
    assert facts.gpu_count({}) == 0
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/kfd")
    assert facts.gpu_count({}) is None


def test_programs_are_found_on_the_path_or_by_their_own(tmp_path):
    """They must be executable files."""
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    environ = {"PATH": f"/nowhere:{tmp_path}"}

    assert not facts.program_exists("tool", environ)
    program.chmod(0o755)
    assert facts.program_exists("tool", environ)
    assert facts.program_exists(str(program), {})
    assert not facts.program_exists("tool", {"PATH": "/nowhere"})
    assert not facts.program_exists(str(tmp_path), {})


def test_modules_are_found_in_this_folder_or_among_those_installed(tmp_path, monkeypatch):
    """Without importing them."""
    (tmp_path / "of_this_folder.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)

    assert facts.module_exists("of_this_folder")
    assert facts.module_exists("json.tool")
    assert facts.module_exists("sys")
    assert not facts.module_exists("no_such_module_anywhere.x")
    assert not facts.module_exists("")
    assert "of_this_folder" not in sys.modules


def test_names_are_not_given_twice():
    """Two jobs of one second on one node differ."""
    assert facts.random_id() != facts.random_id()


# ------------------------------------------------------------------ health checks of the node
def test_settings_of_the_host_s_care_go_to_its_health_process():
    """Every option that is about the host."""
    result = plan(
        "--ft-node-health-check-endpoint unix:///run/h.sock --ft-enable-nic-monitor yes "
        "--ft-storage-health-check-path /data,/ckpt --ft-gpu-memory-reclaim-timeout 7 "
        "--ft-gpu-memory-tolerance-mb 64 --ft-gpu-memory-poll-interval 0.5 "
        "--ft-node-health-check-interval 9 --nproc-per-node 2 train.py",
        {"CUDA_VISIBLE_DEVICES": "2,3"},
    ).care
    assert result is not None
    assert (result.endpoint, result.nproc, result.visible_devices) == ("/run/h.sock", 2, "2,3")
    assert (result.nic_monitor, result.nic_state) == (True, False)
    assert result.storage_paths == ("/data", "/ckpt")
    reclaim = (result.reclaim_timeout_s, result.reclaim_tolerance_mib, result.reclaim_poll_s)
    assert reclaim == (7.0, 64.0, 0.5)
    assert result.interval_s == 9.0
    told = json.loads(json.dumps(encode(ConfigureHealth(result, ()))))
    assert decode(TO_HEALTH, told) == ConfigureHealth(result, ())


def test_a_relative_socket_is_found_by_ranks_that_change_their_folder():
    assert (
        plan("--ft-node_health_check_endpoint ./h.sock train.py").health_endpoint == "/here/h.sock"
    )


def test_an_endpoint_that_is_no_unix_socket_is_not_asked_and_that_is_said():
    """Jobs that carry one from elsewhere keep running."""
    result = plan("--ft-node-health-check-endpoint localhost:50051 train.py")
    assert result.health_endpoint is None
    assert [text for text in result.warnings if "'localhost:50051' is not the path" in text]


def test_a_host_is_not_looked_at_where_nobody_wants_it():
    assert plan("--ft-host-checks false train.py").care is None


@pytest.mark.parametrize("which", ["state", "down"])
@pytest.mark.parametrize("path", ["/sys/class/x/ports/1/state", "{nic}/state"])
def test_a_template_that_leads_all_cards_to_one_file_is_refused(which, path):
    """One card's link would be taken for everybody's."""
    said = refused(f"--ft-link-{which}-path-template {path} train.py")
    assert "it takes an absolute path with {nic} in it" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--ft-pci-topo-file /x.xml", "neither --ft-enable-nic-healthcheck nor"),
        ("--ft-pci-topo-file /x.xml --ft-enable-nic-monitor true", None),
        ("--ft-link-state-path-template /a/{nic} --ft-enable-nic-healthcheck true", None),
        (
            "--ft-host-checks false --ft-node-health-check-endpoint /h --ft-enable-nic-monitor 1",
            "--ft-host-checks is false: --ft-node-health-check-endpoint, --ft-enable-nic-monitor",
        ),
        ("--ft-host-checks false --ft-gpu-memory-tolerance-mb 5", "--ft-gpu-memory-tolerance-mb"),
        ("--ft-host-checks false", None),
    ],
)
def test_an_option_of_care_that_another_leaves_without_effect_is_told(words, told):
    """Somebody gave it, and would go on believing that it does something."""
    warnings = [text for text in plan(f"{words} train.py").warnings if "without effect, as" in text]
    assert bool(warnings) == (told is not None)
    assert told is None or told in warnings[0]


def test_an_unknown_key_of_the_rendezvous_is_told_with_the_nearest_one():
    """It is ignored: torchrun hands such keys to its backends. Keys of others are no mistake."""
    conf = "join_timout=60,close_timeout=30,is_host=1,colour=blue"
    warnings = plan(f"--nnodes 2 --rdzv-endpoint h:1 --rdzv-conf {conf} train.py").warnings
    assert warnings == (
        "--rdzv-conf: join_timout is not known and has no effect; did you mean join_timeout?",
        "--rdzv-conf: colour is not known and has no effect",
    )
    foreign = (
        f"--nnodes 2 --rdzv-backend site-store --rdzv-endpoint h:1 --rdzv-conf {conf} train.py"
    )
    assert plan(foreign).warnings == (), "its keys are its own"


# ------------------------------------------------------------------ metrics and hooks
class ObservedNode(Node):
    def plug_in_names(self, group):
        return {"slack"} if group == "holdfast.observers" else super().plug_in_names(group)


def test_nobody_is_told_of_a_job_unless_an_option_says_so():
    assert plan("train.py").observing is None


def test_metrics_a_command_and_observers_are_in_the_plan():
    node = ObservedNode(modules={"prometheus_client"}, programs={"notify.sh"})
    words = ["--ft-metrics-port", "9400", "--ft-on-incident", "notify.sh '#ml jobs'"]
    words += ["--ft-metrics-host", "127.0.0.1", "--ft-observers", "slack", "train.py"]
    found = make_plan(parse_args(words, {}), {}, node).observing
    assert (found.metrics_host, found.metrics_port) == ("127.0.0.1", 9400)
    assert found.on_incident == ("notify.sh", "#ml jobs")
    assert (found.observers, found.on_every_node) == (("slack",), False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ft-metrics-port", "9400"], r"needs prometheus_client.*pip install 'holdfast\[metrics"),
        (["--ft-metrics-port", "70000"], "--ft-metrics-port: '70000'"),
        (["--ft-on-incident", "absent.sh x"], "on-incident: no program that may be .*absent.sh"),
        (["--ft-on-incident", "notify.sh | tee x"], "no shell is started, so '|' would be"),
        (["--ft-on-incident", "notify.sh 'x"], "--ft-on-incident: .*No closing quotation"),
        (["--ft-observers", "slack,pager"], "--ft-observers: 'pager' .*register slack as"),
    ],
)
def test_what_cannot_tell_anybody_is_refused_before_the_start(words, told):
    node = ObservedNode(programs={"notify.sh"})
    with pytest.raises(UsageError, match=told):
        make_plan(parse_args([*words, "train.py"], {}), {}, node)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("8g", 8 << 30), ("512MiB", 512 << 20), ("1.5t", 3 << 39), ("64k", 1 << 16)],
)
def test_a_size_has_its_unit(text: str, size: int) -> None:
    assert Size().parse(text) == size


@pytest.mark.parametrize("text", ["8", "-1g", "8 gigs", "", "g", "1e9", "nan"])
def test_a_size_without_unit_is_refused_as_nobody_knows_whether_bytes_were_meant(text: str) -> None:
    with pytest.raises(Unacceptable):
        Size().parse(text)
