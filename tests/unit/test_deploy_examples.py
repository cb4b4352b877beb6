"""Manifests under examples/deploy: what they ask of the launcher, and of each other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.job.pure.job_secret import SECRET, SHORT
from holdfast.options.arguments import Arguments, parse_args
from holdfast.options.cluster_env import read_cluster

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
SLURM = (DEPLOY / "slurm.sbatch").read_text()
MANIFESTS = {
    path.stem: [document for document in yaml.safe_load_all(path.read_text()) if document]
    for path in sorted(DEPLOY.glob("kubernetes-*.yaml"))
}
"""Of Kubernetes and JobSet; those of other operators are in ``test_deploy_operators.py``."""


def job_of(name: str) -> dict[str, Any]:
    """The spec of the batch Job that a manifest makes."""
    top: dict[str, Any] = MANIFESTS[name][-1]["spec"]
    if "replicatedJobs" in top:
        (replicated,) = top["replicatedJobs"]
        top = replicated["template"]["spec"]
    return top


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(name)["template"]["spec"]
    return pod


def command_line(name: str) -> Arguments:
    """What the launcher reads, parsed; fails where the parser refuses it or a warning is due."""
    if name == "slurm":
        joined = SLURM.replace("\\\n", " ")
        (line,) = re.findall(r"^srun .*$", joined, re.MULTILINE)
        words = shlex.split(line)
    else:
        (container,) = pod_of(name)["containers"]
        words = [*container["command"], *container["args"]]
    arguments = parse_args(words[words.index("ft_launcher") + 1 :], environ={})
    assert arguments.warnings == []
    return arguments


def test_all_examples_are_checked() -> None:
    """One more needs a test here, or in ``test_deploy_operators.py``."""
    assert sorted(path.name for path in DEPLOY.iterdir()) == [
        *("Dockerfile", "conda", "helm"),
        *("kubeflow-pytorchjob.yaml", "kubeflow-trainjob.yaml"),
        *("kubernetes-indexed-job.yaml", "kubernetes-jobset.yaml"),
        *("kueue-queues.yaml", "networkpolicy.yaml", "slurm.sbatch", "volcano-job.yaml"),
    ]


@pytest.mark.parametrize("name", ["slurm", *MANIFESTS])
def test_flags_are_the_launcher_s(name: str) -> None:
    """Misspelled ones would end every launcher with 2."""
    arguments = command_line(name)

    assert arguments.training_script == "train.py"
    assert arguments.training_script_args == []
    assert arguments.max_restarts > 0


def test_every_node_under_slurm_starts_one_launcher() -> None:
    """And one that leaves takes no other along."""
    assert "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill" in SLURM


def test_launchers_under_slurm_have_all_cpus_that_the_job_asked_for() -> None:
    """From Slurm 22.05 on srun does not read the job's --cpus-per-task."""
    (export,) = re.findall(r"^export SRUN_CPUS_PER_TASK=.*$", SLURM, re.MULTILINE)
    told = subprocess.run(
        ["bash", "-c", f"{export}; printenv SRUN_CPUS_PER_TASK"],
        env={**os.environ, "SLURM_CPUS_PER_TASK": "64"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout == "64\n"
    assert SLURM.index(export) < SLURM.index("\nsrun ")


def test_make_cluster_says_what_it_needs_in_one_line(tmp_path: Path) -> None:
    """With the packages to install."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster"],
        env={**os.environ, "PATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: missing here: slurmctld, ")
    assert "apt-get install iproute2 munge slurm-wlm util-linux" in line


def test_launchers_under_slurm_share_a_secret_that_nobody_wrote_down() -> None:
    """Drawn in the batch script, in the environment of srun, and on no command line."""
    (draw,) = re.findall(rf"^{SECRET}=.*$", SLURM, re.MULTILINE)
    command = f"{draw}; export {SECRET}; printenv {SECRET}"
    drawn = {
        subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }

    assert len(drawn) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in drawn)
    assert len(drawn.pop()) >= SHORT
    assert SLURM.index(f"export {SECRET}") < SLURM.index("\nsrun ")


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_get_a_secret_that_the_manifest_does_not_hold(name: str) -> None:
    """How it is made is said where it is asked for."""
    text = (DEPLOY / f"{name}.yaml").read_text()
    (variable,) = [v for v in pod_of(name)["containers"][0]["env"] if v["name"] == SECRET]
    wanted = variable["valueFrom"]["secretKeyRef"]

    assert f"kubectl create secret generic {wanted['name']} " in text
    assert f"--from-literal={wanted['key']}=" in text
    assert "value" not in variable


def test_slurm_does_not_queue_a_job_again_that_asks_not_to() -> None:
    """By the code that the launcher was told to use."""
    (codes,) = re.findall(r"^([\d |]+)\) exit", SLURM, re.MULTILINE)

    final = {int(code) for code in codes.split("|")}
    assert final == {0, 2, command_line("slurm").ft_no_restart_exit_code}


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_does_not_replace_pods_that_ask_not_to_be(name: str) -> None:
    """The rule on exit codes needs pods that are never restarted in place."""
    rules = job_of(name)["podFailurePolicy"]["rules"]
    (codes,) = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob"]

    assert pod_of(name)["restartPolicy"] == "Never"
    assert codes["containerName"] == pod_of(name)["containers"][0]["name"]
    assert codes["values"] == [2, command_line(name).ft_no_restart_exit_code]


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_find_each_other(name: str) -> None:
    """With what Kubernetes adds to the manifest, pod 3 knows how many there are and where 0 is."""
    manifest, job = MANIFESTS[name][-1], job_of(name)
    environ = {"JOB_COMPLETION_INDEX": "3"}
    in_set = manifest["kind"] == "JobSet"
    environ["HOSTNAME"] = "train-node-0-3" if in_set else "train-3"
    annotations = {
        "jobset-name": "train",
        "replicatedjob-name": "node",
        "replicatedjob-replicas": "1",
        "job-index": "0",
    }
    for variable in pod_of(name)["containers"][0]["env"]:
        value = variable.get("value")
        if variable["name"] == SECRET:
            assert variable["valueFrom"]["secretKeyRef"]["key"] == "secret"
            value = "from the cluster's secret"
        if value is None:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            (key,) = re.findall(r"^metadata\.annotations\['jobset\.sigs\.k8s\.io/(.*)'\]$", path)
            value = annotations[key]
        environ[variable["name"]] = value
    cluster = read_cluster(environ)

    assert cluster is not None
    assert cluster.nodes == job["completions"] == job["parallelism"]
    assert cluster.node_rank == 3
    assert cluster.first_host == ("train-node-0-0.train" if in_set else "train-0.train")
    assert environ["TORCHELASTIC_ERROR_FILE"] == "/dev/termination-log"


def test_the_indexed_job_brings_the_service_that_names_its_pods() -> None:
    """Headless, for pods that are not ready yet, too."""
    service, job = MANIFESTS["kubernetes-indexed-job"]

    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
