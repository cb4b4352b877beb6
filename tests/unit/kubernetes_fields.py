"""Says what an API server would refuse in a manifest: fields, types, and rules between fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_FIELDS: dict[str, dict[str, str]] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(),
    Loader=yaml.BaseLoader,  # "True" stays a word
)
_PLAIN: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "quantity": (str, int, float),
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def refused(manifest: dict[str, Any]) -> list[str]:
    """Why an API server refuses this manifest, one line each; empty: it takes it."""
    kind = manifest.get("kind")
    if manifest.get("apiVersion", "").startswith("batch.volcano.sh/"):
        kind = f"Volcano{kind}"
    if kind not in _FIELDS:
        return [f"kind: {kind} is not in {Path(__file__).stem}.yaml"]
    return [*_check(manifest, kind, ""), *_rules(manifest)]


def _check(value: Any, wanted: str, where: str) -> Iterator[str]:
    if wanted in _PLAIN:
        is_number_asked = wanted in ("integer", "quantity")
        if not isinstance(value, _PLAIN[wanted]) or (is_number_asked and isinstance(value, bool)):
            yield f"{where}: {value!r} is no {wanted}"
    elif wanted.startswith("["):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for number, each in enumerate(value):
            yield from _check(each, wanted[1:-1], f"{where}[{number}]")
    elif wanted.startswith("{"):
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no map"
            return
        for key, each in value.items():
            yield from _check(each, wanted[1:-1], f"{where}.{key}")
    elif wanted in _FIELDS:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no {wanted}"
            return
        fields = {name.rstrip("!"): kind for name, kind in _FIELDS[wanted].items()}
        for name in _FIELDS[wanted]:
            if name.endswith("!") and name[:-1] not in value:
                yield f"{where}.{name[:-1]}: is required"
        for name, each in value.items():
            if name not in fields:
                yield f"{where}.{name}: {wanted} has no such field"
            elif where or name not in ("apiVersion", "kind"):
                yield from _check(each, fields[name], f"{where}.{name}")
            elif each != fields[name]:
                yield f".{name}: is {each!r}, should be {fields[name]!r}"
    elif value not in wanted.split("|"):
        yield f"{where}: {value!r} is none of {wanted}"


def _rules(manifest: dict[str, Any]) -> Iterator[str]:
    """What the API server asks for and field lists do not show."""
    if not _LABEL.fullmatch(manifest["metadata"].get("name", "")):
        yield ".metadata.name: is no DNS label"
    spec = manifest.get("spec", {})
    if manifest["apiVersion"] == "batch/v1":
        yield from _job_rules(spec)
    if manifest["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for replicated in spec.get("replicatedJobs", ()):
        yield from _job_rules(replicated["template"]["spec"])
    for pod in pods_of(manifest):
        yield from _pod_rules(pod)
    for rule in spec.get("failurePolicy", {}).get("rules", ()):
        if not _RULE.fullmatch(rule.get("name", "")):
            yield f"failurePolicy: {rule.get('name')!r} is no name for a rule (no hyphens)"


def _job_rules(job: dict[str, Any]) -> Iterator[str]:
    pod = job["template"]["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield "restartPolicy: a Job needs Never or OnFailure"
    if job.get("completionMode") == "Indexed" and "completions" not in job:
        yield "completions: required where completionMode is Indexed"
    names = [container["name"] for container in pod["containers"]]
    rules = job.get("podFailurePolicy", {}).get("rules", ())
    if rules and pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy: needs restartPolicy Never"
    for rule in rules:
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield "podFailurePolicy: a rule has either onExitCodes or onPodConditions"
        codes = rule.get("onExitCodes", {})
        if codes and codes.get("containerName", names[0]) not in names:
            yield f"podFailurePolicy: there is no container {codes['containerName']!r}"
        values = codes.get("values", [])
        if values != sorted(set(values)) or (codes.get("operator") == "In" and 0 in values):
            yield f"podFailurePolicy: {values} are not exit codes in order, once each, without 0"


def pods_of(value: Any) -> Iterator[dict[str, Any]]:
    """The specs of the pods that a manifest makes, at any depth."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pods_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from pods_of(each)


def _pod_rules(pod: dict[str, Any]) -> Iterator[str]:
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"volumeMounts: there is no volume {mount['name']!r}"
        variables = [variable["name"] for variable in container.get("env", ())]
        if len(variables) != len(set(variables)):
            yield "env: a variable is set twice"
        ports = {port.get("name") for port in container.get("ports", ())}
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{probe}: there is no port {port!r}"
        for name, limit in container.get("resources", {}).get("limits", {}).items():
            request = container["resources"].get("requests", {}).get(name, limit)
            if quantity(request) > quantity(limit):
                yield f"resources: the request of {name} is above its limit"


_UNITS = {"": 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: Any) -> float:
    """The number that Kubernetes reads: 64Gi, 500m, 8."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]
