"""Lines of the log, the events that they report, and the remedies. Pure.

``holdfast explain`` prints it, and docs/messages.md is made from it. Where a failure has a cause of
its own (a missing file, a port in use ...), the line itself has the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class KnownLine(NamedTuple):
    """Of lines that have one of these phrases.

    Attributes:
        phrases: ``...`` in them stands for names and numbers.
        meaning: The event, and the remedy.
        page: In docs/, with more.
    """

    phrases: tuple[str, ...]
    meaning: str
    page: str = ""


EXPLANATIONS = {
    "A rank failed or hung": (
        KnownLine(
            ("incident ... of cycle ..., evidence of",),
            (
                "a rank made no progress within its timeout. The line before names the rank that "
                "the others wait for; incident.txt in this folder says what to do"
            ),
            "incidents.md",
        ),
        KnownLine(
            ("other rank waits", "other ranks wait"),
            (
                "the rank at the beginning of the line holds up the others: look at its line of "
                "code. The next line has the folder of the incident, with the stacks of all threads"
            ),
            "incidents.md#how-the-culprit-is-found",
        ),
        KnownLine(
            ("exit code ...",),
            (
                "how a process exited. A rank: by the exception that the line names, or sys.exit, "
                "at that line of your script; holdfast report has the traceback. The launcher: the "
                "code says whether to start the job again"
            ),
            "exit-codes.md",
        ),
        KnownLine(
            ("another rank was lost",),
            (
                "this rank is not the cause: it lost the connection to a rank that ended first. If "
                "no line names one, look for a rank that left by sys.exit, or reached the end of "
                "its script in mid-job: that prints no error"
            ),
            "failure-model.md",
        ),
        KnownLine(
            ("exited with code 0", "began to exit ("),
            (
                "this rank left in mid-job, and another one failed of the lost connection: look in "
                "it for sys.exit, an early return, or fewer batches than the others have"
            ),
            "failure-model.md",
        ),
        KnownLine(
            ("is in the log of the launcher that leads the job",),
            "an incident is logged once, there",
            "incidents.md",
        ),
        KnownLine(
            (
                "Section '...' has been open for",
                "Did not get subsequent heartbeat for",
                "Did not get initial heartbeat for",
            ),
            (
                "the timeout that ran out (level debug, incident.txt). If the work was right, "
                "give it a longer one"
            ),
            "sections.md#choosing-timeouts",
        ),
        KnownLine(
            ("Has made no optimizer step for",),
            "the script reports nothing, so optimizer steps count",
            "no-code-change.md",
        ),
        KnownLine(
            (
                "have called collective",
                "wait in a circle, each for another one of them",
                ", and others wait for",
                "and torch has not ended it",
            ),
            "the proof that no time can help; a restart follows, if one is left",
            "no-code-change.md#when-ranks-are-killed",
        ),
        KnownLine(
            ("Has not called init_workload_monitoring() for",),
            "a rank did not come as far as the others",
            "sections.md",
        ),
        KnownLine(
            ("did not call RankMonitorClient.init_workload_monitoring()",),
            "hangs of this rank are not seen, those of others are",
            "sections.md",
        ),
        KnownLine(
            ("Its process has run on for",),
            "a rank hangs at its exit",
            "sections.md#leaving",
        ),
        KnownLine(
            ("not by holdfast; the kernel reports no out-of-memory kill",),
            "a person, a scheduler or another program sent the signal",
            "what-is-killed.md",
        ),
        KnownLine(
            ("out of memory: ... by the kernel", "perhaps out of memory"),
            "the kernel killed the rank, or (perhaps) another process at that moment",
            "failure-model.md",
        ),
        KnownLine(
            ("the node guard of restarts in place",),
            "a rank hung, could not be interrupted, and was killed after hard_timeout",
            "inprocess.md",
        ),
        KnownLine(
            ("exit handlers have not ended",),
            "an atexit function took longer than --ft-exception-grace",
            "no-code-change.md#an-exception-restarts-the-job-at-once",
        ),
        KnownLine(
            (
                "it was forked before the handler for stack dumps was installed",
                "it is an interpreter of its own (spawn, forkserver)",
            ),
            ("no stack of this data-loader worker; timeout= of its DataLoader shows what it did"),
            "incidents.md",
        ),
        KnownLine(
            ("killed by the launcher, as its host is not healthy",),
            "a GPU or a link broke",
            "health.md",
        ),
        KnownLine(
            (
                "the driver asks for recovery action",
                "check cable and switch",
                "its server does not answer",
            ),
            "a check of this node found it; the line names the device",
            "health.md#probes",
        ),
        KnownLine(
            ("stuck in the kernel (uninterruptible)", "does not die of SIGKILL"),
            (
                "storage, network or a driver holds the process until the device answers, or a "
                "reboot"
            ),
            "failure-model.md",
        ),
    ),
    "The job continues, or does not": (
        KnownLine(
            ("restart ... of ...",),
            (
                "all ranks were started again. The line begins with the ranks that were stopped "
                "or killed"
            ),
            "first-restart.md",
        ),
        KnownLine(
            ("snapshots in memory",),
            "how many, how large, and the limit",
            "options.md#restarting",
        ),
        KnownLine(
            ("snapshots are off",),
            "they need more memory: --ft-snapshot-memory",
            "options.md#restarting",
        ),
        KnownLine(
            ("no step is kept at another node",),
            "memory for it is missing, or a launcher has no --ft-snapshot-keep",
            "snapshots.md#lost-nodes",
        ),
        KnownLine(
            ("no snapshots at peers",),
            "copies of a step to another node failed, and why; the kept step stays",
            "snapshots.md#lost-nodes",
        ),
        KnownLine(
            ("is not written to",),
            "no snapshot outlives the job: its folder is full, missing or does not answer",
            "snapshots.md#when-the-job-ends",
        ),
        KnownLine(
            ("nothing is rescued",),
            "holdfast rescue has written no snapshot, and why; the job continues",
            "snapshots.md#while-the-job-runs",
        ),
        KnownLine(
            ("snapshot ... is not used",),
            "a file in the folder, and the reason",
            "snapshots.md#when-the-job-ends",
        ),
        KnownLine(
            ("all ranks begin from the snapshot of step",),
            "after a restart in place; a second half says why not from a newer one",
            "inprocess.md#snapshots",
        ),
        KnownLine(
            ("all ranks begin from no snapshot",),
            "no snapshot fits: what follows says why. The function loads its checkpoint",
            "inprocess.md#snapshots",
        ),
        KnownLine(
            ("begins from the checkpoint of step ...: it is newer than the snapshot of step",),
            "Lightning or a Trainer saved after the last snapshot: so the snapshot is not used",
            "snapshots.md",
        ),
        KnownLine(
            ("its first steps are not taken, so that a restart by the launcher can go back",),
            (
                "ranks that are fewer than before keep the older snapshots for as many steps as "
                "--ft-snapshot-progress says"
            ),
            "inprocess.md#snapshots",
        ),
        KnownLine(
            ("the job ends:",),
            "the reason; the exit code says whether to start the job again",
            "exit-codes.md",
        ),
        KnownLine(
            ("attempts left; will restart worker group", "has joined round"),
            "torchrun's words, at level debug",
            "from-torchrun.md",
        ),
        KnownLine(
            ("to read this run: holdfast report",),
            "this command shows failures, and where the time went",
            "report.md",
        ),
        KnownLine(
            (
                "no restart is left",
                "no progress in ... in a row",
                "the same failure in ... in a row",
            ),
            "the job was given up, with exit code 1 or 93",
            "deploy.md#starting-again-and-when-not-to",
        ),
        KnownLine(
            ("passed on to ... no restart any more",),
            "the launcher got a signal. Ranks have --term-timeout to save",
            "deploy.md#ending-in-time",
        ),
        KnownLine(
            ("logs and evidence are in",),
            "the folder of the run",
            "run-folder.md",
        ),
        KnownLine(
            ("goodput ...", "goodput is not known: no rank reports progress"),
            "the share of productive steps, or why there is none",
            "report.md#the-ledger",
        ),
        KnownLine(
            ("asked to shut the workload down", "a rank has asked for"),
            "the script stopped the job, or took this node out of it",
            "exit-codes.md",
        ),
        KnownLine(
            ("the job was completed without",),
            "with min-healthy a rank may be lost",
            "inprocess.md#under-a-launcher",
        ),
        KnownLine(
            ("no iteration can be read from",),
            "the file that shows progress is missing or slow; the cycle is not counted",
            "deploy.md#starting-again-and-when-not-to",
        ),
        KnownLine(
            ("iteration ...: rank ... raised",),
            "its traceback follows; then a restart in place, or what a later line says",
            "inprocess.md",
        ),
        KnownLine(
            ("the restart began with", "; the restart in place after that failed"),
            (
                "a rank was killed as it did not come back for a restart in place; the first "
                "cause is this exception or fault"
            ),
            "inprocess.md",
        ),
        KnownLine(
            ("iteration ...: restarted after",),
            "a Wrapper called the function again",
            "inprocess.md",
        ),
        KnownLine(
            ("the only rank of its job",),
            "a Wrapper was called without RANK and WORLD_SIZE, as in a notebook",
            "inprocess.md",
        ),
        KnownLine(
            ("RANK and WORLD_SIZE are not set in a job of",),
            "srun or mpirun started several processes; each would train alone",
            "inprocess.md",
        ),
        KnownLine(
            ("a restart waits for",),
            (
                "the function is in call.atomic() or clean-up; killed by hard_timeout or "
                "barrier_timeout"
            ),
            "inprocess.md#rules-for-the-function",
        ),
        KnownLine(
            ("an abort plug-in failed", "process groups are aborted:"),
            "an abort of the Wrapper raised, or did not free its rank; the restart continues",
            "inprocess-plugins.md",
        ),
        KnownLine(
            ("failed, too",),
            "more than one of the composed plug-ins raised",
            "inprocess-plugins.md",
        ),
        KnownLine(
            ("a restart was swallowed by", "the main thread cannot be interrupted"),
            "a bare except: caught the restart, or the script replaced signal handlers",
            "inprocess.md#rules-for-the-function",
        ),
        KnownLine(
            ("left: ", "--ft-warm-standby=off"),
            "memory got short, so parked interpreters left",
            "warm-standby.md#memory",
        ),
        KnownLine(
            ("starts plainly", "no more warm standby", "warm standby leaves out"),
            "a restart takes as long as a start, and why",
            "warm-standby.md",
        ),
    ),
    "Several nodes": (
        KnownLine(
            ("is over for this node",),
            "a rank or a node elsewhere failed; the line names it",
            "two-nodes.md",
        ),
        KnownLine(
            ("its launcher has ended",),
            "the launcher of a node was killed, says its kernel",
            "failure-model.md",
        ),
        KnownLine(
            ("silent for",),
            "no messages from a node: power, network, or a stopped launcher",
            "failure-model.md",
        ),
        KnownLine(
            ("No restart is left, so nothing is gained by giving it up", "sends messages again"),
            "a silent node is awaited; if it is lost for good, stop the job",
            "failure-model.md",
        ),
        KnownLine(
            ("no message from the leader of the job for",),
            (
                "this node is cut off, or the leader is asleep or gone. Ranks are killed; another "
                "launcher leads, or after 120 s this one exits with 1"
            ),
        ),
        KnownLine(
            (
                "has not had an answer of most of its launchers in time",
                "does not lead the job any more",
            ),
            (
                "the leader is cut off from most launchers: it kills the ranks of its side, as "
                "the others may continue, and follows their leader when it can"
            ),
            "failure-model.md",
        ),
        KnownLine(
            ("the leader of the job is lost",),
            "ranks are killed, the exit code is 1",
            "failure-model.md",
        ),
        KnownLine(
            ("the launcher that led the job is lost",),
            "ranks are killed, and the launchers vote for another one",
            "deploy.md#when-the-leader-is-lost",
        ),
        KnownLine(
            ("does not answer, and only there a launcher can take the lead",),
            (
                "the leader is lost, and etcd (or another backend) is away: the job continues if "
                "it is back within 120 s"
            ),
            "deploy.md#another-place-to-meet",
        ),
        KnownLine(
            ("leads the job now",),
            "the launcher that leads from now on",
            "deploy.md#when-the-leader-is-lost",
        ),
        KnownLine(
            ("this witness has",),
            "whether holdfast witness has a vote now",
            "deploy.md#a-witness-for-two-nodes",
        ),
        KnownLine(
            ("the witness on",),
            "a witness has come or is lost; ranks are not touched",
            "deploy.md#a-witness-for-two-nodes",
        ),
        KnownLine(
            ("the job is led by the launcher at",),
            "this launcher was started anew at the endpoint, and joins",
            "deploy.md#when-the-leader-is-lost",
        ),
        KnownLine(
            ("the launcher that leads the job did nothing for",),
            "it was suspended or stopped, or got no processor: the first cause",
            "failure-model.md",
        ),
        KnownLine(
            (
                "was stopped, or got no processor, for",
                "killed by its monitor, as the launcher of its node did nothing for",
            ),
            "so the monitors of this launcher killed its ranks",
            "failure-model.md",
        ),
        KnownLine(
            ("the others have gone on without this node",),
            "suspended or cut off for too long: it kills its ranks and joins again",
            "two-nodes.md",
        ),
        KnownLine(
            ("waiting for the launcher that leads",),
            "no answer: check --rdzv-endpoint, the firewall, the first node",
            "deploy.md#how-launchers-find-each-other",
        ),
        KnownLine(
            (
                "would train on its own node alone",
                "starts ... launchers on a node",
                "which only launchers on this host can reach",
            ),
            "each node needs one launcher, and all of them one endpoint",
            "deploy.md#refused-jobs",
        ),
        KnownLine(
            ("is claimed by", "--ft-segment:"),
            "two nodes have one number, or no known NVLink domain",
            "deploy.md#how-launchers-find-each-other",
        ),
        KnownLine(
            ("more (--nnodes",),
            "too few nodes have come; the line says how long the job waits",
            "exit-codes.md#when-nodes-leave-and-the-job-cannot-continue",
        ),
        KnownLine(
            ("has started without this node, which waits as a spare", "waiting for a place"),
            "this node, or another, is a spare",
            "deploy.md#how-launchers-find-each-other",
        ),
        KnownLine(
            ("belongs to another job",),
            "refused: a launcher with another script, or of another Slurm job",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("differs from the leader",),
            "other arguments, --nnodes, --max-restarts or contents of the script",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("this job of several nodes has no name",),
            "give each job an --rdzv-id",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("was a spare for the whole job", "came after the end of the job"),
            "this node had no place in any cycle; the exit code is the job's",
            "exit-codes.md",
        ),
        KnownLine(
            ("has succeeded on this endpoint",),
            "this launcher starts it again. Kill it, if that is not meant",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("leads another job",),
            "a job of another name is at this endpoint. Both continue; give each its own",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("has not answered within",),
            "the launcher that leads the job is stopped",
            "deploy.md#two-jobs-at-one-endpoint",
        ),
        KnownLine(
            ("ranks follow node addresses",),
            "no scheduler numbers the nodes; only their order depends on it",
            "deploy.md#how-launchers-find-each-other",
        ),
        KnownLine(
            ("refuses this one, as their secrets differ", "that is kept out of the job"),
            "different secrets, or another program that reaches the port",
            "security.md",
        ),
        KnownLine(
            ("was cut off:",),
            "a connection only: of another version, not of this job, or a port scan",
            "security.md",
        ),
        KnownLine(
            ("can accept no connection, so its callers wait",),
            "too many open descriptors; raise ulimit -n or fs.file-max",
            "security.md",
        ),
        KnownLine(
            ("the others need this launcher to meet",),
            "this node has no ranks any more, and leads",
            "exit-codes.md",
        ),
    ),
    "Not watched, not kept, left alone": (
        KnownLine(
            ("timeouts may only be raised in this cycle",),
            "durations were measured after a restart; a first start takes longer",
            "sections.md#learned-timeouts",
        ),
        KnownLine(
            ("unknown key", "has no section ..., or an empty one"),
            "a mistake in the file of --ft-cfg-path; nothing was started",
            "yaml.md",
        ),
        KnownLine(
            ("no rank has called RankMonitorClient.init_workload_monitoring() within",),
            "hangs of this job are not watched",
            "sections.md",
        ),
        KnownLine(
            ("no launcher watches this process",),
            "the script runs without ft_launcher; its calls do nothing",
            "sections.md",
        ),
        KnownLine(
            ("is a stall:", "no rank is killed, because"),
            (
                "no optimizer steps for long: an evaluation, a save, or an unproved hang. "
                "--ft-auto-kill after=SECONDS would kill ranks"
            ),
            "no-code-change.md",
        ),
        KnownLine(
            ("no optimizer step for",),
            "the same, after a minute: for your information",
            "no-code-change.md#when-steps-pause",
        ),
        KnownLine(
            ("is not configured, so it is not monitored",),
            "a section has no timeout",
            "sections.md",
        ),
        KnownLine(
            ("died; starting another",),
            "a monitor died; the rank trains on",
            "failure-model.md",
        ),
        KnownLine(
            ("stacks of this rank will be missing from incidents",),
            "no signal was free, or its handler could not be installed",
            "incidents.md#the-evidence",
        ),
        KnownLine(
            ("if this launcher is stopped, its ranks run on",),
            "the lease, by which monitors notice that, could not be made",
            "failure-model.md#reported-not-survived",
        ),
        KnownLine(
            ("but hangs of this rank will not be detected any more", "runs unwatched"),
            "its monitor died too often, or there was no space for its page",
            "failure-model.md",
        ),
        KnownLine(
            ("evidence that ... did not take is kept in", "evidence that ... did not take is lost"),
            "the run folder was full, or did not answer",
            "failure-model.md#faults-of-the-host-of-files-and-of-the-network",
        ),
        KnownLine(
            ("is left alone",),
            "no proof ties this process to the job. Kill it yourself if it is yours",
            "what-is-killed.md",
        ),
        KnownLine(
            ("left behind, still there",),
            "SIGKILL does not end this process of the job",
            "failure-model.md",
        ),
        KnownLine(
            ("that a killed launcher had left on this node",),
            "remains of an earlier job of yours were killed",
            "what-is-killed.md",
        ),
        KnownLine(
            ("checking this host took too long", "continuing without it"),
            "a driver or a file system hangs; the job continues",
            "health.md",
        ),
        KnownLine(
            ("no metrics and no hooks",),
            "the process beside the launcher has died; the job continues",
            "metrics.md",
        ),
        KnownLine(
            ("without effect",),
            "an option or variable that does nothing here",
            "environment.md#options-without-effect",
        ),
    ),
}
"""By subject; tests look for each phrase in the messages of the code."""


def found_in(line: str) -> Iterator[KnownLine]:
    """Explanations of a line; the one of the longest phrase comes first."""
    found = []
    for rows in EXPLANATIONS.values():
        for row in rows:
            sizes = [len(phrase) for phrase in row.phrases if pattern_of(phrase).search(line)]
            if sizes:
                found.append((max(sizes), row))
    yield from (row for _, row in sorted(found, key=lambda each: -each[0]))


def pattern_of(phrase: str) -> re.Pattern[str]:
    """``...`` stands for any text."""
    return re.compile(".*".join(map(re.escape, phrase.split("..."))))
