"""Launchers of several nodes, real processes: lose one, replace one, end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

from holdfast.base.processes import proc
from holdfast.base.pure.codec import encode
from holdfast.job.pure.link import GreetLeader, LauncherProof
from holdfast.net.address import is_own_address
from tests.garbage import encoded, send_and_hear_out
from tests.real.harness import Job, kill
from tests.real.nodes import (
    ASKS,
    HANGS,
    HANGS_FIRST,
    LOSES_A_PEER,
    REDUCES,
    SHORT_SILENCE_S,
    TELLS,
    TRAINS_TOGETHER,
    WAITS_FOR_ANOTHER_NODE,
    WORKS,
    Nodes,
    in_cycle,
    joined,
    life,
)
from tests.waiting import SCALE, until

LOOKS_LATE = """
import pathlib, socket, threading, time
gate, look_up = pathlib.Path({gate!r}), socket.getaddrinfo
def late(*args, **kwargs):
    if threading.current_thread() is not threading.main_thread():
        gate.with_name("go.waits").touch()
        while not gate.exists():
            time.sleep(0.01)
    return look_up(*args, **kwargs)
socket.getaddrinfo = late
"""
"""The launcher's way to the others takes as long as a test wants."""


def end_well(nodes: Nodes, *jobs: Job) -> None:
    nodes.end()
    assert [job.wait() for job in jobs] == [0] * len(jobs)


def test_a_node_whose_ranks_all_hang_before_their_first_call_is_found(nodes: Nodes) -> None:
    """A rank of the other node has called, so this one is expected to."""
    limit = "--ft-first-call-timeout=0.5"
    a, b = (nodes.add(HANGS_FIRST, "2", limit, monitors=True) for _ in range(2))

    in_cycle(1, a, b)
    end_well(nodes, a, b)
    words = r"killed rank 1 \(first report: "
    assert a.said(words) or b.said(words), a.stderr + b.stderr


def lose(job: Job) -> None:
    """A node that vanishes: launcher and ranks at once, without a word."""
    job.signal(signal.SIGSTOP)
    for pid in job.leftovers():
        kill(pid)
    kill(job.process.pid)
    job.process.wait()


def test_a_rank_that_dies_on_one_node_restarts_all_and_they_talk_again(nodes: Nodes) -> None:
    """New master, same ranks, a gloo group that works; over IPv6, where this host has it."""
    has_ipv6 = is_own_address("::1")
    nodes.host = "[::1]" if has_ipv6 else nodes.host
    a, b = (nodes.add(REDUCES, "2") for _ in range(2))
    before = in_cycle(0, a, b)
    assert [told["total"] for told in before] == [3, 3]
    assert before[0]["MASTER_ADDR"] == ("::1" if has_ipv6 else "127.0.0.1")

    kill(before[1]["pid"])

    after = in_cycle(1, a, b)
    assert [told["total"] for told in after] == [3, 3]
    assert [told["RANK"] for told in after] == [told["RANK"] for told in before]
    assert after[0]["MASTER_PORT"] != before[0]["MASTER_PORT"]
    end_well(nodes, a, b)
    who = r"rank . \(local rank 0, pid \d+, node \S+\)"
    assert a.said(rf"cycle 0 is over for this node: {who}: killed by SIG")
    assert a.events("cycle_stopping")


def test_a_rank_that_hangs_on_one_node_is_found_and_all_nodes_restart(nodes: Nodes) -> None:
    """Its monitor finds it, leaves stacks and an incident on its node; all learn who began."""
    limits = ("--ft-rank-section-timeouts=step:0.5", "--ft-rank-out-of-section-timeout=null")
    jobs = [nodes.add(HANGS, "2", *limits, monitors=True) for _ in range(2)]
    before = in_cycle(0, *jobs)
    hung, other = jobs if before[0]["RANK"] == "1" else reversed(jobs)

    after = in_cycle(1, *jobs)

    assert [told["RANK"] for told in after] == [told["RANK"] for told in before]
    end_well(nodes, *jobs)  # by then all evidence is where it belongs
    stacks = (hung.run_dir / "attempt_0" / "0" / "stacks.txt").read_text()
    assert "stuck_in_here" in stacks
    (record,) = hung.hung_ranks()
    assert record["rank"] == 1
    (overdue,) = hung.events("rank_overdue")
    assert (overdue["rank"], overdue["clock"], overdue["name"]) == (1, "section", "step")
    assert not other.events("rank_overdue")
    # What an engineer reads, on any node. The node of the rank says it of its own, and may have
    # nothing left to stop when the others are told; ranks start before words.
    until(lambda: hung.said(r"killed rank 1 \(section 'step': .*0.5 s\)"), "the line of its node")
    until(lambda: other.said(r"holdfast: (cycle 0 is over for this node: )?rank 1 \("), "the line")


def test_the_rank_that_holds_up_the_others_is_named_wherever_it_is(
    nodes: Nodes, tmp_path: Path
) -> None:
    """No timeout of its node runs out; the first overdue rank is on the other one, and is ended.

    People hear of it once, from the node of the leader, though both write it and the job ends.
    """
    limits = "--ft-rank-section-timeouts=step:0.5", "--ft-rank-out-of-section-timeout=null"
    told = tmp_path / "told"
    hook = "--ft-on-incident", f"sh -c 'echo $1 >> {told}' hook"
    patient = "--ft-evidence-timeout=10"  # the verdict comes with the last rank's evidence
    options = "--nproc-per-node=2", "--max-restarts=0", patient, *limits, *hook
    jobs = [nodes.add(WAITS_FOR_ANOTHER_NODE, "2", *options, monitors=True) for _ in range(2)]
    assert [job.wait() for job in jobs] == [1, 1]

    held_up = r"rank 3 (\(pid \d+, node .*\) )?.* in `load_batch` script\d.py:.*"
    for job in jobs:
        [incident] = job.events("incident")
        assert (incident["culprits"], incident["confidence"]) == ([3], "high")
        assert job.said(f"holdfast: (cycle 0 is over for this node: )?{held_up}"), job.stderr
    assert {record["rank"] for job in jobs for record in job.hung_ranks()} <= {0, 1}
    assert sum(job.stderr.count("incident 1 of cycle 0, evidence of") for job in jobs) == 1, (
        "once per job"
    )
    (path,) = map(Path, told.read_text().splitlines())
    assert len(json.loads(path.read_text())["ranks"]) == 4, "the one with all digests"


def test_a_node_that_is_stopped_is_named_and_not_the_ranks_that_wait_for_it(nodes: Nodes) -> None:
    """Launcher, monitors and ranks, as by a debugger or a frozen machine; it goes on too late."""
    limits = "--ft-rank-section-timeouts=step:0.5", "--max-restarts=0", "--ft-evidence-timeout=3"
    a, b = (nodes.add(TRAINS_TOGETHER, "2", *limits, monitors=True) for _ in range(2))
    in_cycle(0, a, b)
    stopped = list(proc.subtree(b.process.pid))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    nodes.ask()

    [incident] = until(lambda: a.events("incident"), "its incident")

    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert (incident["culprits"], incident["verdict"]) == ([1], "missing")
    named = r"rank 1 \(node .*\) does not answer: .*; 1 other rank waits for it in `all_red"
    until(lambda: a.said(named), "the line, which may follow the event")
    assert [job.wait() for job in (a, b)] == [1, 1]
    assert all(told["culprits"] in ([], [1]) for told in b.events("incident")), "its own view"


def test_a_launcher_that_waits_says_for_whom_and_may_be_interrupted(nodes: Nodes) -> None:
    """Soon, and once; nothing has run, so there is nothing to wait for."""
    a = nodes.add(WORKS, "2")
    until(lambda: a.said(r"1 of 2 nodes is here \(.* \(pid \d+\)\); waiting up to"), "what for")

    a.signal(signal.SIGINT)

    assert a.wait() == 1
    assert a.said(r"was stopped by SIGINT")
    assert a.stderr.count("1 of 2 nodes is here") == 1
    assert not a.said("Traceback")


def test_a_spare_takes_the_place_of_a_lost_node(nodes: Nodes) -> None:
    """Without a word; the survivor's rank has failed by then; the cause named is the node."""
    nodes.silence_s = SHORT_SILENCE_S
    a, b = (nodes.add(LOSES_A_PEER, "2") for _ in range(2))
    before = in_cycle(0, a, b)
    spare = nodes.add(LOSES_A_PEER, "2")
    joined(spare)

    lose(b)
    nodes.ask()

    after = in_cycle(1, a, spare)
    assert [told["RANK"] for told in after] == [told["RANK"] for told in before]
    until(
        lambda: a.said(
            r"cycle 0 (ended|is over for this node): .* was lost .its launcher has ended"
        ),
        "why",
    )
    end_well(nodes, a, spare)


def test_a_job_goes_on_smaller_and_grows_when_a_node_is_back(nodes: Nodes) -> None:
    """Down to MIN at once, up again at the next cycle."""
    nodes.silence_s = SHORT_SILENCE_S
    a, b = (nodes.add(WORKS, "1:2") for _ in range(2))
    in_cycle(0, a, b)

    lose(b)
    (alone,) = in_cycle(1, a)

    back = nodes.add(WORKS, "1:2")
    joined(back)
    kill(alone["pid"])
    in_cycle(2, a, back)
    end_well(nodes, a, back)


def test_a_node_that_a_rank_excludes_leaves_and_a_spare_takes_over(nodes: Nodes) -> None:
    """The excluded launcher ends with 0: it did what it was asked; the job goes on without it."""
    host, other = (nodes.add(ASKS, "2", ask="ExcludeThisNode") for _ in range(2))
    before = in_cycle(0, host, other)
    spare = nodes.add(ASKS, "2")
    joined(spare)
    excluded, stays = (host, other) if before[0]["RANK"] == "1" else (other, host)

    nodes.ask()

    in_cycle(1, stays, spare)
    if excluded is host:  # leads to the end of the job
        nodes.end()
    assert excluded.wait() == 0
    end_well(nodes, stays, spare)
    assert excluded.said(r"rank 1 asks for ExcludeThisNode \(ECC errors on GPU 3\)")
    assert life(excluded, 1) is None


def test_a_shutdown_request_ends_all_without_a_restart(nodes: Nodes) -> None:
    """Every launcher exits with 1 and knows who asked, and for what reason."""
    jobs = [nodes.add(ASKS, "2", ask="ShutdownWorkload") for _ in range(3)]
    for job in jobs:
        joined(job)

    nodes.ask()

    assert [job.wait() for job in jobs] == [1, 1, 1]

    assert all(life(job, 1) is None for job in jobs)
    for job in jobs:
        assert job.said(
            r"rank 1 on \S+ \(pid \d+\) asked to shut the workload down: ECC errors on GPU 3"
        )


def test_a_launcher_that_is_killed_is_missed_at_once(nodes: Nodes) -> None:
    """Its kernel says so: no silence of it, here of an hour, is waited for."""
    nodes.silence_s = 3600
    a, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, a, b)
    spare = nodes.add(WORKS, "2")
    joined(spare)

    kill(b.process.pid)

    in_cycle(1, a, spare)
    end_well(nodes, a, spare)
    assert a.said(r"was lost \(its launcher has ended\)")


def test_another_launcher_leads_when_the_leader_s_dies_and_the_job_goes_on(nodes: Nodes) -> None:
    """Its kernel says so: no silence of it, here of a minute, is waited for; once, and again.

    Not of an hour: where only some have the round that gives the spare its vote, they look for each
    other once more after 0.3 of a silence.
    """
    nodes.silence_s = 60.0 * SCALE
    host, b, c = (nodes.add(WORKS, "2:3") for _ in range(3))
    in_cycle(0, host, b, c)
    spare = nodes.add(WORKS, "2:3")
    joined(spare)
    until(lambda: spare.said("waits as a spare"), "it has a vote, or is about to")

    lose(host)

    in_cycle(1, b, c, spare)
    [leader] = [job for job in (b, c, spare) if job.said("this launcher leads the job now")]
    others = [job for job in (b, c, spare) if job is not leader]
    for job in others:
        until(lambda job=job: job.said(r"the launcher at \S+ leads the job now"), "it follows")

    lose(leader)

    in_cycle(2, *others)
    end_well(nodes, *others)


def test_a_leader_s_launcher_that_is_told_to_end_hands_over(nodes: Nodes) -> None:
    """As a node that is drained: its ranks end in their time, then another leads, at once."""
    nodes.silence_s = 3600
    host, b, c = (nodes.add(WORKS, "2:3") for _ in range(3))
    in_cycle(0, host, b, c)

    host.signal(signal.SIGTERM)

    in_cycle(1, b, c)
    assert host.wait() == 1
    assert any(job.said("is lost .it left: it got SIGTERM") for job in (b, c))
    end_well(nodes, b, c)


def test_a_launcher_that_is_started_anew_at_the_endpoint_joins_the_job_that_is_led_elsewhere(
    nodes: Nodes,
) -> None:
    """It would lead a job of its own; and those that come to the endpoint are sent on by it."""

    def add(is_host: int) -> Job:
        conf = f"is_host={is_host},last_call_timeout=20,grow_cooldown=1"
        return nodes.add(WORKS, "2:5", conf=conf)

    host, b, c = add(1), add(0), add(0)
    in_cycle(0, host, b, c)
    lose(host)
    in_cycle(1, b, c)

    back = add(1)
    until(lambda: back.said("the job is led by the launcher at"), "it is called")
    late = add(0)
    joined(late)

    until(lambda: life(back, 2) or life(back, 3), "the one has a place")
    until(lambda: life(late, 2) or life(late, 3), "so has the other")
    end_well(nodes, b, c, back, late)


def test_a_job_of_two_ends_with_the_leader_s_launcher(nodes: Nodes) -> None:
    """One of two is no majority: ranks end at once, with a line that says why."""
    nodes.silence_s = 3600
    host, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, host, b)

    lose(host)

    assert b.wait() == 1
    assert b.said(r"the leader of the job is lost: its launcher has ended")
    assert not b.leftovers()


def test_a_node_that_is_told_to_end_leaves_the_others_to_go_on(nodes: Nodes) -> None:
    """SIGTERM to one launcher: its place is given to the spare without waiting for silence."""
    a, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, a, b)
    spare = nodes.add(WORKS, "2")
    joined(spare)

    b.signal(signal.SIGTERM)

    assert b.wait() == 1
    in_cycle(1, a, spare)
    end_well(nodes, a, spare)
    assert a.said("left the job .signalled")


def test_the_leader_s_launcher_that_is_told_to_end_tells_the_others(nodes: Nodes) -> None:
    """Nobody hears of it by a broken connection."""
    a, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, a, b)

    a.signal(signal.SIGTERM)

    assert [a.wait(), b.wait()] == [1, 1]
    assert b.said("the launcher that led the job left")


def test_the_ranks_of_a_launcher_that_is_stopped_end_before_others_have_their_place(
    nodes: Nodes,
) -> None:
    """It cannot end them itself; its monitors can. When it goes on it is told, and leaves."""
    nodes.silence_s = SHORT_SILENCE_S
    a, b = (nodes.add(WORKS, "1:2", monitors=True) for _ in range(2))
    _, stopped = in_cycle(0, a, b)
    # In the first cycle monitors start after the ranks, which have more to do; then this is said.
    until(lambda: b.said("cycle 0: started"), "its monitors have been started")

    b.signal(signal.SIGSTOP)
    in_cycle(1, a)

    assert Path(f"/proc/{stopped['pid']}/status").read_text().count("State:\tZ") == 1
    b.signal(signal.SIGCONT)
    until(lambda: b.said("its monitors have killed its ranks"), "who has ended them")
    until(lambda: b.said("which stops its ranks, and joins again|which joins again"), "its return")
    until(
        lambda: b.said("waiting for a place"),
        "that the leader knows of it: the job ends for it, too",
    )
    end_well(nodes, a, b)


def stopped_together(*jobs: Job) -> list[int]:
    """Stop launchers, monitors and ranks, as `scontrol suspend` does."""
    pids = [pid for job in jobs for pid in proc.subtree(job.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def go_on(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_a_job_that_is_suspended_as_a_whole_goes_on(nodes: Nodes) -> None:
    """For longer than any silence may last. Nobody ends ranks, no restart is spent."""
    nodes.silence_s = SHORT_SILENCE_S
    cold = "--ft-warm-standby=false"
    jobs = [nodes.add(REDUCES, "2", cold, monitors=True) for _ in range(2)]
    before = in_cycle(0, *jobs)

    pids = stopped_together(*jobs)
    time.sleep(1.4 * SHORT_SILENCE_S)  # what is tested, and not a wait for anything
    go_on(pids)

    assert all(Path(f"/proc/{told['pid']}").exists() for told in before)
    end_well(nodes, *jobs)
    assert all(life(job, 1) is None for job in jobs)
    assert not any(job.said("WARNING.*silent|ERROR") for job in jobs)


def test_a_leader_that_slept_names_itself_and_the_job_starts_again(nodes: Nodes) -> None:
    """The other node has stopped its ranks, as it could not know; it waits for the leader."""
    nodes.silence_s = SHORT_SILENCE_S
    host, b = (nodes.add(WORKS, "2", monitors=True) for _ in range(2))
    in_cycle(0, host, b)

    pids = stopped_together(host)
    until(lambda: b.said("no message from the leader"), "the other has stopped its ranks")
    go_on(pids)

    in_cycle(1, host, b)
    end_well(nodes, host, b)
    assert b.said(r"cycle 0 ended: the launcher that leads the job did nothing for \d")


def test_a_node_that_slept_is_awaited_where_no_restart_is_left(nodes: Nodes) -> None:
    """As torchrun would: giving it up could only end the job."""
    nodes.silence_s = SHORT_SILENCE_S
    a, b = (nodes.add(REDUCES, "2", "--max-restarts=0", monitors=True) for _ in range(2))
    in_cycle(0, a, b)

    pids = stopped_together(b)
    until(lambda: a.said("No restart is left, so nothing is gained"), "its silence is noticed")
    go_on(pids)

    until(lambda: a.said("sends messages again"), "its return")
    end_well(nodes, a, b)


def test_a_launcher_that_waits_for_others_ends_when_told(nodes: Nodes) -> None:
    """In the rendezvous, and before there is a leader to meet."""
    lonely = nodes.add(WORKS, "2")
    lost = nodes.add(WORKS, "2", "--rdzv-endpoint=127.0.0.1:9")
    joined(lonely)
    until(lambda: lost.said("looking for the others"), "it looks for the leader")

    lonely.signal(signal.SIGTERM)
    lost.signal(signal.SIGTERM)

    assert [lonely.wait(), lost.wait()] == [1, 1]


def test_strangers_at_the_endpoint_end_no_job(nodes: Nodes) -> None:
    """Garbage, a forged proof and an End cost a line of the log each minute."""
    a, b = (nodes.add(WORKS, "2") for _ in range(2))
    before = in_cycle(0, a, b)
    for pid in (told["pid"] for told in before):
        assert b"HOLDFAST_JOB_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    greeting = encode(GreetLeader("'j1'", "0" * 32, "n9", "n9", "127.0.0.1", 9))
    end = {"op": "end", "outcome": "succeeded", "exit_code": 0, "cause": "a stranger says so"}
    forged = encoded(greeting) + encoded(encode(LauncherProof("0" * 64))) + encoded(end)
    for data in (forged, encoded(end), b"[" * 10**5, forged[:40], b"\0" * 9):
        with socket.create_connection(("127.0.0.1", nodes.port)) as stranger:
            send_and_hear_out(stranger, data)

    kill(before[1]["pid"])

    in_cycle(1, a, b)
    end_well(nodes, a, b)
    assert a.said("a caller from 127.0.0.1 .*was cut off|is kept out of the job 'j1'")
    assert a.stderr.count("cut off") <= 6
    assert "battery" not in a.stderr + b.stderr


def test_a_launcher_without_the_job_s_secret_is_kept_out_and_told_why(nodes: Nodes) -> None:
    """The others go on waiting for the one that has it."""
    a = nodes.add(WORKS, "2")
    wrong = nodes.add(WORKS, "2", secret="")

    assert wrong.wait() == 1

    assert wrong.said("refuses this one, .*this launcher has none.*HOLDFAST_JOB_SECRET")
    b = nodes.add(WORKS, "2")
    in_cycle(0, a, b)
    end_well(nodes, a, b)
    assert a.said("is kept out of the job 'j1': .*HOLDFAST_JOB_SECRET")


def test_a_launcher_that_finds_no_leader_says_so_in_one_line(nodes: Nodes) -> None:
    """Where it looked, why in vain, for how long, and what to do; nothing of torch's inside."""
    lost = nodes.add(WORKS, "2", "--rdzv-endpoint=nowhere.invalid:29500", conf="read_timeout=1")

    assert lost.wait() == 1

    (line,) = [line for line in lost.stderr.splitlines() if "nowhere.invalid:29500 could" in line]
    for part in ("the name 'nowhere.invalid' does not resolve", "tried for 1 s", "--rdzv-endpoint"):
        assert part in line
    assert "frame #" not in lost.stderr


def test_a_launcher_that_died_while_it_waited_takes_no_place(nodes: Nodes) -> None:
    """Its ghost holds up nobody for longer than a silence may last."""
    nodes.silence_s = SHORT_SILENCE_S
    a, ghost = (nodes.add(WORKS, "3") for _ in range(2))
    joined(a)
    joined(ghost)

    lose(ghost)
    b, c = (nodes.add(WORKS, "3") for _ in range(2))

    def together() -> list[int]:
        return [cycle for cycle in (0, 1) if all(life(job, cycle) for job in (a, b, c))]

    (cycle,) = until(together, "three living nodes in one cycle")
    in_cycle(cycle, a, b, c)
    end_well(nodes, a, b, c)


def test_too_many_launchers_disturb_nobody(nodes: Nodes) -> None:
    """The third of two stands by, whoever it is, and ends with the job."""
    jobs = [nodes.add(WORKS, "2") for _ in range(3)]
    for job in jobs:
        joined(job)
    until(lambda: len([job for job in jobs if life(job, 0)]) == 2, "two take part")

    end_well(nodes, *jobs)

    assert sorted(len(job.written("lives")) for job in jobs) == [0, 1, 1]
    (spare,) = [job for job in jobs if not job.written("lives")]
    assert spare.said(
        r"the job succeeded; this node was a spare for the whole job, and never ran .*script\d.py; "
        "exit code 0"
    )


def test_a_launcher_of_another_script_is_refused_and_the_job_goes_on(nodes: Nodes) -> None:
    """At one endpoint and under one name; before the job has all its nodes, and as a spare."""
    a = nodes.add(WORKS, "2")
    joined(a)
    before = nodes.add("print('another job')", "2")
    assert before.wait() == 1
    b = nodes.add(WORKS, "2")
    in_cycle(0, a, b)
    spare = nodes.add("print('another job')", "2")
    assert spare.wait() == 1

    end_well(nodes, a, b)

    what = (
        r"belongs to another job: it was started to run script script\d.py \(sha256 \w{8}, .*, and "
    )
    for other in (before, spare):
        assert other.said(f"refused by the leader: .*{what}the job runs script script0.py")
        assert other.said("Give each job an --rdzv-id and an --rdzv-endpoint of its own")
        assert "another job\n" not in other.stdout
    assert len([line for line in a.stderr.splitlines() if "a launcher was refused: " in line]) == 2


def test_two_jobs_of_different_names_at_one_endpoint_are_two_jobs(nodes: Nodes) -> None:
    """As under torchrun: launchers of the second ask at the endpoint of the first."""
    a, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, a, b)
    other = [nodes.add(TELLS, "2", "--rdzv-id=j2") for _ in range(2)]

    assert [job.wait() for job in other] == [0, 0]

    assert [life(job, 0) is not None for job in other] == [True, True]
    for job in other:
        assert job.said("leads another job, 'j1': launchers of this job, 'j2', meet there, too")
    assert len([job for job in (a, b, *other) if job.said("leads the job 'j2'")]) == 1
    end_well(nodes, a, b)
    assert not a.events("cycle_stopping")


def test_a_launcher_that_comes_after_the_end_does_not_start_the_job_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    """It had begun while the job ran, and would host the store anew; a new run is one."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(LOOKS_LATE.format(gate=str(tmp_path / "go")))
    conf = "last_call_timeout=0"
    a = nodes.add(WORKS, "1:2", conf=conf)
    in_cycle(0, a)
    late = nodes.add(WORKS, "1:2", conf=conf, path=slow)
    until((tmp_path / "go.waits").exists, "it has begun, and looks for the others")
    end_well(nodes, a)
    (tmp_path / "go").touch()

    assert late.wait() == 0

    assert late.said(r"the job is over: all ranks succeeded, \d+ s ago, while this launcher was")
    assert late.said("this node came after the end of the job, and never ran .*script1.py")
    assert not late.written("lives")
    again = nodes.add(WORKS, "1:2", conf=conf)
    end_well(nodes, again)
    assert len(again.written("lives")) == 1
    assert again.said("has succeeded on this endpoint .* this launcher .* starts it again")


def test_under_min_healthy_a_failed_node_waits_while_enough_are_well(nodes: Nodes) -> None:
    """One of two fails and waits; when the other fails too, that is below MIN."""
    policy = ("1:2", "--ft-restart-policy=min-healthy")
    a, b = (nodes.add(WORKS, *policy) for _ in range(2))
    first, second = in_cycle(0, a, b)

    kill(second["pid"])
    until(lambda: b.events("worker_exited"), "it is noticed")
    until(lambda: b.events("cycle_stopped"), "nothing of it is alive")
    assert not a.events("worker_exited")

    kill(first["pid"])
    in_cycle(1, a, b)
    end_well(nodes, a, b)
    assert b.events("cycle_started")[1]["t"] > a.events("worker_exited")[0]["t"]
