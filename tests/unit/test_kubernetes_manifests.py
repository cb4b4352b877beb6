"""The Kubernetes manifests against the API that takes them and the launcher that they start."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.job.pure import timing
from holdfast.job.pure.exit_codes import Ending
from holdfast.node import agent
from holdfast.node.processes import sweeper
from holdfast.node.pure.node import SWEEP_LIMIT_S, UNKILLABLE_AFTER_S
from holdfast.node.records import run_dirs
from tests.unit import helm_chart
from tests.unit.kubernetes_fields import refused
from tests.unit.test_deploy_examples import (
    DEPLOY,
    MANIFESTS,
    SLURM,
    command_line,
    job_of,
    pod_of,
)

DOCS = Path(__file__).parents[2] / "docs"


def documents() -> dict[str, dict[str, Any]]:
    """Every manifest that people are asked to apply, by file and kind."""
    found = {
        f"{path.stem}-{document['kind']}": document
        for path in sorted(DEPLOY.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    }
    found |= {f"helm-{document['kind']}": document for document in helm_chart.manifests()}
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            if "apiVersion:" in block:
                for document in yaml.safe_load_all(block):
                    found[f"{page.name}-{document['kind']}"] = document
    return found


@pytest.mark.parametrize("name", documents())
def test_an_api_server_takes_what_we_tell_people_to_apply(name: str) -> None:
    """Fields, types, required ones, and the rules between them."""
    assert refused(documents()[name]) == []


def _job_without(spoil: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    job = copy.deepcopy(documents()["kubernetes-indexed-job-Job"])
    spoil(job["spec"])
    return job


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda job: job.update(backofLimit=1), ".spec.backofLimit: JobSpec has no such field"),
        (lambda job: job.update(completions="4"), ".spec.completions: '4' is no integer"),
        (lambda job: job.update(parallelism=True), ".spec.parallelism: True is no integer"),
        (lambda job: job.update(completionMode="indexed"), "is none of NonIndexed|Indexed"),
        (
            lambda job: job["podFailurePolicy"]["rules"][0]["onPodConditions"][0].pop("status"),
            ".onPodConditions[0].status: is required",
        ),
        (
            lambda job: job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[93, 2]),
            "are not exit codes in order",
        ),
        (
            lambda job: job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(
                containerName="main"
            ),
            "there is no container 'main'",
        ),
        (
            lambda job: job["template"]["spec"].update(restartPolicy="OnFailure"),
            "needs restartPolicy Never",
        ),
        (
            lambda job: job["template"]["spec"]["containers"][0]["env"][0].update(value=4),
            ".env[0].value: 4 is no string",
        ),
        (
            lambda job: job["template"]["spec"]["volumes"].pop(),
            "there is no volume 'checkpoints'",
        ),
    ],
)
def test_what_an_api_server_would_refuse_is_found(
    spoil: Callable[[dict[str, Any]], object], why: str
) -> None:
    """One mistake each, in a manifest that is right."""
    (found,) = refused(_job_without(spoil))
    assert why in found


def what_becomes_of_a_pod(name: str, code: int, *, disrupted: bool = False) -> str:
    """The action of the first rule of the Job's podFailurePolicy that fits."""
    if code == 0:
        return "Complete"
    for rule in job_of(name)["podFailurePolicy"]["rules"]:
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions", [])
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
        if disrupted and any(
            each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions
        ):
            return rule["action"]
    return "Count"


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize(
    "ending",
    [each for each in Ending if each is not Ending.INTERRUPTED],  # no pod has a keyboard
    ids=lambda ending: ending.name,
)
def test_kubernetes_starts_again_what_the_launcher_wants_started_again(
    name: str, ending: Ending
) -> None:
    """Of every way in which a launcher ends; the table of exit codes says which."""
    code = ending.code(command_line(name).ft_no_restart_exit_code)
    action = what_becomes_of_a_pod(name, code)

    if code == 0:
        assert action == "Complete"
    elif ending.again == "no":
        assert action == "FailJob"
    else:
        assert action == "Count"


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize("code", [1, 2, 93, 137, 143])
def test_a_drained_pod_is_replaced_and_not_counted(name: str, code: int) -> None:
    """Whatever its launcher makes of the signal."""
    assert what_becomes_of_a_pod(name, code, disrupted=True) == "Ignore"


def test_a_jobset_starts_again_unless_the_job_s_policy_ended_it() -> None:
    """The Job's policy fails it with the reason PodFailurePolicy, and only for final codes."""
    policy = MANIFESTS["kubernetes-jobset"][-1]["spec"]["failurePolicy"]

    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_signal_of_kubernetes_reaches_the_launcher(name: str) -> None:
    """It is the container's first process, and takes SIGTERM; nothing else acts before or beside.

    A shell in between would keep the signal to itself; a preStop hook would use up the time.
    """
    (container,) = pod_of(name)["containers"]

    assert container["command"] == ["ft_launcher"]
    assert "lifecycle" not in container
    assert "SIGTERM" in command_line(name).signals_to_handle.split(",")


AFTER_THE_RANKS_S = (
    UNKILLABLE_AFTER_S  # a rank that SIGKILL does not end
    + SWEEP_LIMIT_S
    + 2 * timing.LAST_WORDS_S  # last words, and threads that are stuck
    + sweeper._LAST_SWEEP_S
    + run_dirs._LAST_DELIVERY_S
    + agent._OUTPUT_DRAIN_S
)
"""What a launcher may need after --term-timeout, where everything is stuck."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_leaves_the_launcher_time_to_explain_itself(name: str) -> None:
    """Before its own SIGKILL, also where ranks, disk and console are stuck."""
    grace_s = pod_of(name)["terminationGracePeriodSeconds"]

    assert command_line(name).term_timeout + AFTER_THE_RANKS_S < grace_s


def test_slurm_leaves_the_launcher_time_to_explain_itself() -> None:
    """The same, before the time limit."""
    (signal_s,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", SLURM, re.MULTILINE)

    assert command_line("slurm").term_timeout + AFTER_THE_RANKS_S < int(signal_s)


def test_the_page_says_what_the_examples_give() -> None:
    """docs/deploy.md names the signal's distance and the grace period."""
    page = (DOCS / "deploy.md").read_text()
    (signal_s,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", SLURM, re.MULTILINE)

    assert f"`--signal=TERM@{signal_s}`" in page
    for name in MANIFESTS:
        assert f"{pod_of(name)['terminationGracePeriodSeconds']} s in the examples" in page
    assert DEPLOY.is_dir()
