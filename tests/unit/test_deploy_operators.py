"""Examples for Kubeflow, Volcano, Kueue, Helm, Docker and conda: they agree with the launcher."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.base import facts
from holdfast.job.pure.job_secret import SECRET
from holdfast.options.arguments import Arguments, parse_args
from holdfast.options.meeting_plan import DEFAULT_PORT
from holdfast.options.options import BY_NAME
from holdfast.options.plan import LaunchPlan, make_plan
from tests.unit import helm_chart
from tests.unit.kubernetes_fields import pods_of, quantity
from tests.unit.test_deploy_examples import DEPLOY
from tests.unit.test_kubernetes_manifests import AFTER_THE_RANKS_S

ROOT = Path(__file__).parents[2]
NODES = 4
PARKED = 2**30  # bytes of a parked interpreter with CUDA (docs/platform.md)
FREE = 32 * 2**30  # that warm standby wants beside them (docs/warm-standby.md)


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def launchers(name: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each kind of pod of an example, with its launcher's container."""
    documents = helm_chart.manifests() if name == "helm" else read(name)
    if name == "kubeflow-trainjob.yaml":
        runtime, job = documents
        (pod,) = pods_of(runtime)
        trainer = job["spec"]["trainer"]
        given = {key: trainer[key] for key in ("image", "command", "args")}
        container = {**pod["containers"][0], **given, "resources": trainer["resourcesPerNode"]}
        return {"node": (pod, container)}
    if name == "kubeflow-pytorchjob.yaml":
        specs = documents[0]["spec"]["pytorchReplicaSpecs"]
        pods = {kind: spec["template"]["spec"] for kind, spec in specs.items()}
    else:
        pods = {"node": next(pods_of(documents))}
    return {kind: (pod, pod["containers"][0]) for kind, pod in pods.items()}


EXAMPLES = (
    *("kubernetes-indexed-job.yaml", "kubernetes-jobset.yaml", "helm"),
    *("kubeflow-pytorchjob.yaml", "kubeflow-trainjob.yaml", "volcano-job.yaml"),
)
PODS = [(name, kind) for name in EXAMPLES for kind in launchers(name)]


def parsed(container: dict[str, Any], environ: dict[str, str] | None = None) -> Arguments:
    environ = environ or {}
    words = [
        re.sub(r"\$\((\w+)\)", lambda found: environ.get(found[1], "0"), word)
        for word in container["args"]
    ]
    arguments = parse_args(words, environ)
    assert arguments.warnings == []
    return arguments


@pytest.mark.parametrize(("name", "kind"), PODS)
def test_the_launcher_takes_the_command_line_and_its_signals(name: str, kind: str) -> None:
    """It is the first process of its container, and says itself why the job ends."""
    pod, container = launchers(name)[kind]
    arguments = parsed(container)

    assert container["command"] == ["ft_launcher"]
    assert (arguments.training_script, arguments.training_script_args) == ("train.py", [])
    assert arguments.term_timeout + AFTER_THE_RANKS_S < pod["terminationGracePeriodSeconds"]
    assert arguments.ft_no_restart_exit_code == BY_NAME["--ft-no-restart-exit-code"].default == 93


@pytest.mark.parametrize(("name", "kind"), PODS)
def test_probe_and_port_are_those_of_the_metrics(name: str, kind: str) -> None:
    """No liveness probe: Kubernetes sees the end of the launcher by itself."""
    _, container = launchers(name)[kind]
    (port,) = container["ports"]

    assert parsed(container).ft_metrics_port == port["containerPort"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert "livenessProbe" not in container


@pytest.mark.parametrize(("name", "kind"), PODS)
def test_requests_count_parked_interpreters_and_shared_memory(name: str, kind: str) -> None:
    """Guaranteed: only then does oom_score_adj say which process the kernel kills first."""
    pod, container = launchers(name)[kind]
    resources = container["resources"]
    (shm,) = [volume for volume in pod["volumes"] if volume["name"] == "shm"]
    ranks = int(parsed(container).nproc_per_node)

    assert resources["requests"] == resources["limits"]
    assert ranks == resources["limits"]["nvidia.com/gpu"]
    assert shm["emptyDir"]["medium"] == "Memory"
    besides = quantity(shm["emptyDir"]["sizeLimit"]) + ranks * PARKED + FREE
    assert quantity(resources["limits"]["memory"]) > 2 * besides, "the ranks need some, too"


@pytest.mark.parametrize(("name", "kind"), PODS)
def test_a_pod_needs_no_root_and_no_capability(name: str, kind: str) -> None:
    """With the user of the image, a root that is not written to, and folders for all writes."""
    pod, container = launchers(name)[kind]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(user[0])
    assert pod["securityContext"]["runAsGroup"] == int(user[1])
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/dev/shm"}
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


@pytest.mark.parametrize(("name", "kind"), PODS)
def test_the_secret_comes_from_the_cluster(name: str, kind: str) -> None:
    _, container = launchers(name)[kind]
    (variable,) = [each for each in container["env"] if each["name"] == SECRET]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "train-launchers", "key": "secret"}


# ---------------------------------------------------------------- how launchers meet
def plan_of(container: dict[str, Any], environ: dict[str, str]) -> LaunchPlan:
    arguments = parsed(container, environ)
    arguments.training_script = __file__
    return make_plan(arguments, {SECRET: "0" * 64, **environ}, facts)


def test_pods_of_a_pytorchjob_meet_at_its_master() -> None:
    """The operator's service of the master has the name JOB-master-0; only that pod leads."""
    (job,) = read("kubeflow-pytorchjob.yaml")
    pods = launchers("kubeflow-pytorchjob.yaml")
    specs = job["spec"]["pytorchReplicaSpecs"]
    for kind, (_, container) in pods.items():
        assert container["name"] == "pytorch", "the operator looks for that name"
        rank = "0" if kind == "Master" else "3"
        plan = plan_of(container, {"PET_NODE_RANK": rank, "PET_NNODES": "4", "WORLD_SIZE": "4"})
        place = plan.meeting.place
        assert (place.host, place.port) == (f"{job['metadata']['name']}-master-0", DEFAULT_PORT)
        assert place.is_host is (kind == "Master")
        assert plan.meeting.infra_rank == int(rank)
        assert plan.meeting.nodes.max_nodes == sum(spec["replicas"] for spec in specs.values())
    assert specs["Master"]["replicas"] == 1
    assert {spec["restartPolicy"] for spec in specs.values()} == {"OnFailure"}


def test_pods_of_a_trainjob_meet_at_its_first_pod() -> None:
    """The trainer makes a JobSet of the job's name, whose replicated job is called node."""
    runtime, job = read("kubeflow-trainjob.yaml")
    _, container = launchers("kubeflow-trainjob.yaml")["node"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    kubeflow = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": str(DEFAULT_PORT),
        "JOB_COMPLETION_INDEX": "2",
    }
    plan = plan_of(container, kubeflow)

    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert replicated["name"] == container["name"] == "node"
    place = plan.meeting.place
    assert f"{place.host}:{place.port}" == f"{name}-node-0-0.{name}:{DEFAULT_PORT}"
    assert plan.meeting.infra_rank == 2
    assert plan.meeting.nodes.max_nodes == trainer["numNodes"] == NODES
    assert parsed(container).nproc_per_node == str(trainer["numProcPerNode"])


def test_pods_of_a_volcano_job_meet_at_its_first_pod() -> None:
    """The plug-in svc gives names, the plug-in env the number of the pod."""
    (job,) = read("volcano-job.yaml")
    _, container = launchers("volcano-job.yaml")["node"]
    (task,) = job["spec"]["tasks"]
    name = job["metadata"]["name"]
    plan = plan_of(container, {"VC_TASK_INDEX": "3"})

    place = plan.meeting.place
    assert f"{place.host}:{place.port}" == f"{name}-{task['name']}-0.{name}:{DEFAULT_PORT}"
    assert plan.meeting.infra_rank == 3
    assert plan.meeting.nodes.max_nodes == task["replicas"] == job["spec"]["minAvailable"]
    assert set(job["spec"]["plugins"]) == {"svc", "env"}
    final = {each["exitCode"] for each in task["policies"] if "exitCode" in each}
    assert final == {2, parsed(container).ft_no_restart_exit_code}


# ---------------------------------------------------------------- network, queues
def test_the_network_policy_admits_the_job_and_the_reader_of_its_metrics() -> None:
    (policy,) = read("networkpolicy.yaml")
    _, container = launchers("kubernetes-indexed-job.yaml")["node"]
    peers, prometheus = policy["spec"]["ingress"]

    assert peers["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    assert [port["port"] for port in prometheus["ports"]] == [parsed(container).ft_metrics_port]


def test_a_queue_of_kueue_admits_one_job_of_the_examples() -> None:
    """It counts what the pods request."""
    flavor, cluster, local = read("kueue-queues.yaml")
    _, container = launchers("kubernetes-indexed-job.yaml")["node"]
    (group,) = cluster["spec"]["resourceGroups"]
    (flavors,) = group["flavors"]
    quota = {each["name"]: quantity(each["nominalQuota"]) for each in flavors["resources"]}

    assert flavors["name"] == flavor["metadata"]["name"]
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    assert set(group["coveredResources"]) == set(quota)
    wanted = container["resources"]["requests"]
    assert quota == {name: NODES * quantity(each) for name, each in wanted.items()}
    label = f"kueue.x-k8s.io/queue-name: {local['metadata']['name']}"
    assert label in (DEPLOY / "kueue-queues.yaml").read_text(encoding="utf-8")


# ---------------------------------------------------------------- Helm
def test_the_chart_makes_the_indexed_job_of_the_examples() -> None:
    """The same fields with the default values, but for the name of the job."""
    service, policy, job = helm_chart.manifests()
    assert [service, job] == [
        document for document in read("kubernetes-indexed-job.yaml") if _sort_args(job, document)
    ]
    assert [policy] == read("networkpolicy.yaml")


def _sort_args(*documents: dict[str, Any]) -> bool:
    """The order of options is of no interest."""
    for document in documents:
        for pod in pods_of(document):
            pod["containers"][0]["args"].sort()
    return True


def test_values_change_the_job() -> None:
    *_, job = helm_chart.manifests(nodes=2, queue="training", nodeSelector={"pool": "gpu"})
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "training"}
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}


def test_every_value_is_used_and_there_is_no_other() -> None:
    text = (helm_chart.CHART / "templates" / "training.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\.Values\.(\w+)", text)) == set(helm_chart.VALUES)


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
def test_helm_renders_the_same() -> None:
    done = subprocess.run(
        ["helm", "template", helm_chart.RELEASE, helm_chart.CHART],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert sorted(map(json.dumps, theirs)) == sorted(map(json.dumps, helm_chart.manifests()))


# ---------------------------------------------------------------- image, conda
def test_the_image_copies_files_that_are_there_and_starts_the_launcher() -> None:
    """Its base is an argument; the command that it has by default is one that works."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    copied = [
        source.replace("${SCRIPT}", defaults["SCRIPT"])
        for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)

    assert re.search(r"^FROM \$\{BASE\}$", text, re.MULTILINE)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert 'ENTRYPOINT ["ft_launcher"]' in text
    assert parse_args(json.loads(command), {}).warnings == []


def test_the_recipe_of_conda_has_the_version_and_the_needs_of_the_package() -> None:
    """And its two commands."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((DEPLOY / "conda" / "meta.yaml").read_text(encoding="utf-8"))
    other_names = {"torch": "pytorch"}

    assert recipe["package"] == {"name": project["name"], "version": holdfast.__version__}
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["entry_points"] == scripts
    needs = {
        re.sub(r"^[\w-]+", lambda found: other_names.get(found[0], found[0]), each).lower()
        for each in project["dependencies"]
    }
    run = {each.replace(" ", "") for each in recipe["requirements"]["run"]}
    assert run == needs | {f"python{project['requires-python']}", "__linux"}
    assert (DEPLOY / "conda" / recipe["source"]["path"] / "pyproject.toml").is_file()
    for line in recipe["test"]["commands"]:
        assert shlex.split(line)[0] in project["scripts"]
