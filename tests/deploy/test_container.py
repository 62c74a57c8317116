"""The image and the compose file. No container runs here: files are read, and what a container would run is
given to the parser, the settings and, for the check of health, a broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from tests.deploy.kit import DEPLOY, accepted, check_settings, extras
from tests.hooks.metrics.kit import measured, service_of

CONTAINER = DEPLOY / "container"
IMAGE = CONTAINER / "Dockerfile"


def _instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, its text) of a Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines()) if name
    ]


def _last(file: Path, name: str) -> str:
    return [text for found, text in _instructions(file) if found == name][-1]


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return loaded


OURS = [name for name, service in _compose()["services"].items() if service.get("image") == "rmqkit:local"]


@pytest.mark.parametrize("file", [IMAGE, CONTAINER / "etcd.Dockerfile"], ids=lambda path: path.name)
def test_an_image_is_not_root_and_stops_gracefully(file: Path) -> None:
    """The user is a number; the process that gets SIGTERM is the program itself, not a shell."""
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", _last(file, "USER"))
    assert _last(file, "STOPSIGNAL") == "SIGTERM"
    assert isinstance(json.loads(_last(file, "ENTRYPOINT")), list)
    names = [name for name, _ in _instructions(file)]
    assert names[-1] in ("CMD", "ENTRYPOINT")
    assert "HEALTHCHECK" in names
    assert "ADD" not in names


def test_the_command_of_the_image_is_accepted() -> None:
    """Without words of its own a container runs a name server and a broker, with the port that is checked."""
    assert json.loads(_last(IMAGE, "ENTRYPOINT")) == ["rmqkit"]
    words = json.loads(_last(IMAGE, "CMD"))
    given = accepted(words)
    config = check_settings(None, {"RMQKIT_STORE_PATH_ROOT_DIR": "/var/lib/rmqkit"}, **dict(given.set))
    assert config.hooks == ("metrics",)
    assert "RMQKIT_STORE_PATH_ROOT_DIR=/var/lib/rmqkit" in _last(IMAGE, "ENV")
    assert json.loads(_last(IMAGE, "VOLUME")) == ["/var/lib/rmqkit"]


def test_the_extras_of_the_image_exist() -> None:
    """What the build installs is in pyproject.toml, and is all that its roles need."""
    (installed,) = re.findall(r"/src\[([\w,-]+)\]", IMAGE.read_text())
    assert {"metrics", "grpc", "failover"} <= set(installed.split(",")) <= extras()


def test_the_context_has_what_a_build_needs() -> None:
    """Each exception of the ignore file is in the checkout."""
    lines = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[0] == "**"
    for name in (line[1:] for line in lines if line.startswith("!")):
        assert (DEPLOY.parent / name).exists(), name


async def test_the_check_of_health_tells_a_broker_that_runs(tmp_path: Path) -> None:
    """The command of HEALTHCHECK succeeds beside a broker, and fails where none is."""
    options, _, check = _last(IMAGE, "HEALTHCHECK").partition("CMD ")
    assert "--start-period=" in options
    words = json.loads(check)
    assert words[0] == "python"

    async def checked(port: int) -> int:
        program = [sys.executable, *(word.replace(":5557/", f":{port}/") for word in words[1:])]
        result = await trio.run_process(program, check=False, stderr=subprocess.DEVNULL)
        return int(result.returncode)

    async with measured(tmp_path) as running:
        address = service_of(running.context).address
        assert address is not None
        assert await checked(address[1]) == 0
    assert await checked(address[1]) != 0


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose_is_accepted(name: str) -> None:
    """Its command, its settings with its environment, and the files that it mounts. Names of containers are
    names of this machine here, for they have addresses in their own network alone."""
    service = _compose()["services"][name]
    arguments = accepted(service["command"])
    environ = {
        key: "127.0.0.1" if value == name else value for key, value in service.get("environment", {}).items()
    }
    file = CONTAINER / "broker.toml" if arguments.config else None
    check_settings(file, environ)
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (CONTAINER / source).is_file() if source.startswith(".") else source in _compose()["volumes"]


def test_compose_elects_among_three_that_differ() -> None:
    """Three members of one group, each with a name, an address and a volume of its own."""
    brokers = {name: each for name, each in _compose()["services"].items() if name.startswith("broker-")}
    environments = [each["environment"] for each in brokers.values()]
    assert len({each["RMQKIT_PLUGINS__HA__MEMBER_NAME"] for each in environments}) == 3
    assert {each["RMQKIT_BROKER_IP1"] for each in environments} == set(brokers)
    assert len({each["volumes"][0] for each in brokers.values()}) == 3
    config = check_settings(CONTAINER / "broker.toml", {})
    assert (config.plugins["ha"]["elected"], config.plugins["failover"]["coordinator"]) == (
        True,
        "etcd://etcd:2379",
    )


def test_compose_writes_to_volumes_alone() -> None:
    """Root file systems are read-only, privileges are dropped, a broker has the time of a graceful stop, and
    what others depend on has a check."""
    services = _compose()["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        for needed in service.get("depends_on", {}):
            assert needed in services
    assert all(services[name]["stop_grace_period"] == "60s" for name in OURS)
    assert all(
        port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", [])
    )
