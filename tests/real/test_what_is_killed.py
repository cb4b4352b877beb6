"""First, do no harm: real launchers among neighbours, each in a pid namespace of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.real.namespaces import in_pid_namespace
from tests.waiting import BOUND_S

LAUNCH = f"{sys.executable} -m holdfast.fault_tolerance.launcher --ft-host-checks=false"
_WAIT = """
cd "$(dirname "$0")"
until_is() {  # until_is WORD COMMAND...: until the command prints this word, bounded
  local word=$1; shift
  for _ in $(seq 2000); do [ "$("$@")" = "$word" ] && return; sleep 0.02; done
  echo "not within 40 s: $*"; exit 98
}
alive() { [ -d "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" && echo yes || echo no; }
kill_with_monitors() {  # the launcher and all below it at once, so that nobody sweeps
  local below=$(cat /proc/$1/task/$1/children)
  kill -STOP $below; kill -KILL $1; wait $1; kill -KILL $below
}
submit() {  # run batch.sh with a copied environment, as schedulers do
  xargs -0 sh -c 'env -i "$@" setsid --wait bash batch.sh; true' sh < $1
}
exists() { [ -s "$1" ] && echo yes || echo no; }
"""


def run(folder: Path, script: str, *, as_init: bool = False, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    path = folder / "test.sh"
    path.write_text(_WAIT + script.replace("LAUNCH", LAUNCH))
    return in_pid_namespace(path, bound_s=2 * BOUND_S + 60, exec_it=as_init)


RANK = """
import os, signal, subprocess
{more}
with open("env.new", "wb") as file:
    file.write(open("/proc/self/environ", "rb").read())
os.rename("env.new", "env")
signal.pause()
"""


def test_a_batch_shell_with_a_dead_jobs_marker_lives(tmp_path: Path) -> None:
    """``sbatch`` from a rank: the next launcher, below that shell, does not kill it."""
    out = run(
        tmp_path,
        """
        LAUNCH rank.py & job=$!
        until_is yes exists env
        kill_with_monitors $job
        # The scheduler is no process of the job; its shell has the rank's whole environment.
        echo 'LAUNCH next.py; echo "exit code $?"' > batch.sh
        submit env
        echo done
        """,
        rank=RANK.format(more=""),
        next="print('next job ran')",
    )

    assert "next job ran" in out
    assert "exit code 0" in out, out
    assert "done" in out


def test_another_living_job_that_inherited_a_marker_lives(tmp_path: Path) -> None:
    """It was submitted from a rank of a job that is dead; a third launcher starts."""
    out = run(
        tmp_path,
        """
        LAUNCH rank.py & job=$!
        until_is yes exists env
        kill_with_monitors $job
        mv env env.dead
        echo 'echo $PPID > above; LAUNCH rank.py; true' > batch.sh
        submit env.dead &
        until_is yes exists env
        kill -KILL $(cat above)  # its job belongs to init now
        rank=$(tr '\\0' '\\n' < env | sed -n 's/^HOLDFAST_MARKER=\\([0-9]*\\)-.*/\\1/p')
        LAUNCH next.py; echo "exit code $?"
        echo "launcher of the other job lives: $(alive $rank)"
        """,
        rank=RANK.format(more=""),
        next="print('next job ran')",
    )

    assert "exit code 0" in out, out
    assert "other job lives: yes" in out


def test_a_job_in_another_time_namespace_lives(tmp_path: Path) -> None:
    """Its launcher's start time reads differently there: it looks dead."""
    out = run(
        tmp_path,
        """
        unshare --time --boottime 100000 true || { echo "no time namespaces"; exit; }
        unshare --time --boottime 100000 --fork LAUNCH rank.py &
        until_is yes exists env
        rank=$(tr '\\0' '\\n' < env | sed -n 's/^HOLDFAST_MARKER=\\([0-9]*\\)-.*/\\1/p')
        LAUNCH next.py; echo "exit code $?"
        echo "launcher lives: $(alive $rank), its rank: $(alive $(cat pid))"
        """,
        rank=RANK.format(more="print(os.getpid(), file=open('pid', 'w'))"),
        next="print('next job ran')",
    )

    if "no time namespaces" in out:
        pytest.skip("no time namespaces")
    assert "exit code 0" in out, out
    assert "launcher lives: yes, its rank: yes" in out, out


def test_a_helper_of_the_shell_that_became_the_launcher_lives(tmp_path: Path) -> None:
    """``helper & exec ft_launcher``: it was there before, and so is what it starts later."""
    out = run(
        tmp_path,
        """
        cat > shell.sh <<'END'
sh -c 'setsid sleep 1000 & echo $! > later; exec sleep 1000' & echo $! > helper
exec LAUNCH --max-restarts=1 rank.py
END
        bash shell.sh; echo "exit code $?"
        echo "helper lives: $(alive $(cat helper)), its child lives: $(alive $(cat later))"
        """,
        rank="import sys; sys.exit(3)",
    )

    assert "helper lives: yes, its child lives: yes" in out, out


def test_process_1_of_a_container_leaves_those_who_came_in(tmp_path: Path) -> None:
    """As with ``kubectl exec``: the launcher adopts what they leave, and that is not its own."""
    out = run(
        tmp_path,
        """
        sh -c 'until [ -e started ]; do sleep 0.02; done; setsid sleep 1000 & echo $! > guest' &
        exec LAUNCH --max-restarts=1 rank.py
        """,
        as_init=True,
        rank="""
import os, signal, sys, time
open("started", "w").close()
for _ in range(2000):
    try:
        guest = int(open("guest").read())
        _, name, _, parent, *_ = open(f"/proc/{guest}/stat").read().split()
    except (OSError, ValueError):
        name = parent = None
    if (name, parent) == ("(sleep)", "1"):  # before it is setsid
        break
    time.sleep(0.02)
print("cycle", os.environ["NVRX_CYCLE"], "guest's parent is", parent, flush=True)
sys.exit(3)
""",
    )

    assert "cycle 0 guest's parent is 1" in out, out
    assert "cycle 1 guest's parent is 1" in out, out
    assert "left alone below this launcher: sleep (pid" in out, out


PROGRAM = """
import subprocess, sys, threading
from holdfast.fault_tolerance.launcher import main

before = subprocess.Popen(["sleep", "1000"])
later = []
def start():
    later.append(subprocess.Popen(["setsid", "sleep", "1000"]))
    later.append(subprocess.Popen(["sh", "-c", "sleep 0.1; exit 5"]))
threading.Timer(0.05, start).start()
code = main(["--ft-host-checks=false", "--max-restarts=2", "rank.py"])
print("exit code of the job", code, flush=True)
print("own children live", before.poll(), later[0].poll(), flush=True)
print("exit code of a child", later[1].wait(), flush=True)
before.kill(); later[0].kill()
print("ended with", before.wait(), later[0].wait(), flush=True)
"""


def test_a_program_keeps_its_own_children(tmp_path: Path) -> None:
    """``main([...])``: they live through restarts and the end, and exit codes are the program's.

    Ranks' children in sessions of their own are ended.
    """
    out = run(
        tmp_path,
        f"""
        {sys.executable} program.py; echo "program: $?"
        for pid in $(cat orphans); do echo "orphan lives: $(alive $pid)"; done
        """,
        program=PROGRAM,
        rank="""
import subprocess, sys, time
child = subprocess.Popen(["setsid", "sleep", "1000"])
print(child.pid, file=open("orphans", "a"))
time.sleep(0.2)
sys.exit(3)
""",
    )

    assert "exit code of the job 1" in out, out
    assert "own children live None None" in out, out
    assert "exit code of a child 5" in out, out
    assert "ended with -9 -9" in out, out
    assert out.count("orphan lives: no") == 3, out


CHILDREN = {
    "cleared": '["env", "-i", "sleep", "1000"]',
    "cleared, own session": '["env", "-i", "setsid", "sleep", "1000"]',
    "overwritten": '[sys.executable, "-c", overwrite]',
    "orphan of its rank": '["sh", "-c", "env -i sleep 1000 & echo $! > orphan"]',
}
_OVERWRITE = '''
overwrite = """
import ctypes, re, signal
# What setproctitle does: the words go where the environment was.
line = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
begin, end = int(line[47]), int(line[48])
ctypes.memset(begin, 0, end - begin)
signal.pause()
"""
'''


@pytest.mark.parametrize("how", CHILDREN)
def test_children_without_an_environment_end_with_a_killed_launcher(
    tmp_path: Path, how: str
) -> None:
    """K-1: known by their session, or by having been seen below the rank."""
    more = f"""
import sys, time
{_OVERWRITE}
child = subprocess.Popen({CHILDREN[how]})
if {how == "orphan of its rank"}:
    child.wait()
    child.pid = int(open("orphan").read())
print(child.pid, file=open("child", "w"))
marked = lambda: b"HOLDFAST_MARKER" in open(f"/proc/{{child.pid}}/environ", "rb").read()
while marked():
    time.sleep(0.01)
if {how == "cleared, own session"}:
    time.sleep(5)  # its monitor looks one second after its own start, which may be slow
"""
    out = run(
        tmp_path,
        """
        LAUNCH rank.py & job=$!
        until_is yes exists env
        child=$(cat child)
        echo "before: $(alive $child)"
        kill -KILL $job
        until_is no alive $child
        echo "gone"
        """,
        rank=RANK.format(more=more),
    )

    assert "before: yes" in out, out
    assert "gone" in out, out


MARKED_AND_STUBBORN = """
child = subprocess.Popen(["setsid", "sleep", "1000"])
print(child.pid, file=open("child", "w"))
"""


def test_a_users_stuck_process_hangs_nobody(tmp_path: Path) -> None:
    """Whose memory no one may look into: not a launcher, nor the monitors of one that is killed."""
    out = run(
        tmp_path,
        """
        mkfifo stuck
        (setsid sleep 1000 & echo $! > victim)
        sleep 0.1
        for name in environ cmdline maps; do
          mount --bind stuck /proc/$(cat victim)/$name || exit 97
        done
        for killed in monitors launcher; do
          rm -f env child
          LAUNCH rank.py & job=$!
          until_is yes exists env
          if [ $killed = launcher ]; then
            kill -KILL $job
          else
            kill_with_monitors $job
            timeout 60 LAUNCH next.py; echo "exit code $?"
          fi
          until_is no alive $(cat child)
        done
        echo "stuck process lives: $(alive $(cat victim))"
        """,
        rank=RANK.format(more=MARKED_AND_STUBBORN),
        next="print('next job ran')",
    )

    assert "exit code 0" in out, out
    assert "stuck process lives: yes" in out, out


def test_a_stuck_leftover_does_not_keep_its_launcher(tmp_path: Path) -> None:
    """It is like a resource tracker, and its words cannot be read: it is killed all the same."""
    out = run(
        tmp_path,
        """
        mkfifo stuck
        LAUNCH --ft-check-remaining-processes=true rank.py & job=$!
        until_is yes exists child
        for name in environ cmdline maps; do
          mount --bind stuck /proc/$(cat child)/$name || exit 97
        done
        touch go
        wait $job; echo "exit code $?"
        echo "child lives: $(alive $(cat child))"
        """,
        rank="""
import os, subprocess, sys, time
words = "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);"
words += "print(flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, file=open("child", "w"))
while not os.path.exists("go"):
    time.sleep(0.01)
""",
    )

    assert "exit code 0" in out, out
    assert "child lives: no" in out, out
