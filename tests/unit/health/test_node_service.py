"""The health service's client, as far as it needs no service; tests/real has the rest."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.health import node_service
from holdfast.health.node_service import METHOD, PATH_BYTES_MAX, ask, messages
from holdfast.health.pure.health import Finding, Fitness, why_unfit

PROTO = Path(node_service.__file__).with_name("nvhcd.proto").read_text()
TYPES = {5: "int32", 8: "bool", 9: "string"}
"""Of ``FieldDescriptor.type``, those that are used."""


def the(findings: list[Finding]) -> Finding:
    """The only one, which lets the node take part."""
    (finding,) = findings
    assert finding.probe == "service"
    assert finding.verdict is Fitness.UNKNOWN
    assert "\n" not in str(finding)
    assert why_unfit(findings) is None
    return finding


@contextmanager
def socket_file(path: Path) -> Iterator[Path]:
    """A socket that nobody listens to."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        yield path


def test_a_service_that_is_not_there_is_not_asked(tmp_path: Path) -> None:
    """It may be installed on some hosts only."""
    found = the(ask(f"unix://{tmp_path}/none.sock"))
    assert str(found) == f"service {tmp_path}/none.sock: not asked: No such file or directory"


def test_a_file_that_is_no_socket_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a socket" in the(ask(str(tmp_path / "file"))).text


def test_a_path_that_is_too_long_for_a_socket_is_said_to_be() -> None:
    """The kernel's limit is for bytes."""
    path = "/" + "ä" * (PATH_BYTES_MAX // 2 + 1)
    assert f"longer than {PATH_BYTES_MAX} bytes" in the(ask(path)).text


@pytest.mark.parametrize(
    "endpoint", ["", "/a\0b", "/a\udcff", "localhost:50051", "unix:", "~/s"], ids=ascii
)
def test_what_is_no_path_is_an_answer_too(endpoint: str) -> None:
    """Nothing raises."""
    assert the(ask(endpoint)).text.startswith("not asked")


@pytest.mark.parametrize("module", ["grpc", "google.protobuf"])
def test_without_the_extra_it_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with socket_file(tmp_path / "s") as path:
        text = the(ask(str(path))).text
    assert "pip install 'holdfast[health-service]'" in text


def test_a_protobuf_that_is_too_old_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs pin it for other reasons; before 4.22 there was no GetMessageClass."""
    messages.cache_clear()
    monkeypatch.delattr("google.protobuf.message_factory.GetMessageClass")
    with socket_file(tmp_path / "s") as path:
        text = the(ask(str(path))).text
    assert "AttributeError" in text
    assert "holdfast[health-service]" in text


def test_the_proto_file_says_what_the_messages_are() -> None:
    """Whoever writes a service has the file; we have the descriptor."""
    plain = re.sub(r"//.*", "", PROTO)
    package = re.search(r"package (\w+);", plain)
    service = re.search(r"service (\w+) \{\s*rpc (\w+)\((\w+)\) returns \((\w+)\);\s*\}", plain)
    assert package
    assert service
    name, method, *types = service.groups()
    assert f"/{package[1]}.{name}/{method}" == METHOD
    in_file = {
        message: re.findall(r"(repeated |)(\w+) (\w+) = (\d+);", body)
        for message, body in re.findall(r"message (\w+) \{(.*?)\}", plain, re.DOTALL)
    }
    repeated = {"HealthCheckRequest": "repeated ", "HealthCheckResponse": ""}
    made = {
        type_.DESCRIPTOR.name: [
            (repeated[type_.DESCRIPTOR.name], TYPES[field.type], field.name, str(field.number))
            for field in type_.DESCRIPTOR.fields
        ]
        for type_ in messages()
    }
    assert made == in_file
    assert list(made) == types
    request, _ = messages()
    assert list(request(args=["a", "b"]).args) == ["a", "b"]
