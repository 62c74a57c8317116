"""Servers and builds of the interop suite.

`RMQKIT_INTEROP_SERVER=apache` runs the same client tests against Apache's own server, which validates the
tests. A missing tool (java, mvn, go) fails the tests that need it and is named. Servers live as long as one
test module; scenarios use their own topics and groups, so the order of the tests does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import peers, stores
from tests.interop.builds import JAVA_ENDS, BuildError

KINDS = ("rmqkit", "apache")
#: A broker asks for the outcome of a transaction soon, and often.
SETTINGS = {"transactionTimeOut": 500, "transactionCheckInterval": 500}


@pytest.fixture(scope="module")
def rmqkit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """rmqkit's name server and broker in one process; leaving checks that SIGTERM ends it with exit code
    0."""
    try:
        arguments = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        with peers.rmqkit_serve(tmp_path_factory.mktemp("rmqkit"), arguments=arguments) as server:
            yield server
    except peers.PeerError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def apache_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """Apache's name server and broker."""
    try:
        with peers.apache_cluster(
            tmp_path_factory.mktemp("apache"), settings=SETTINGS | {"recallMessageEnable": "true"}
        ) as server:
            yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> peers.Server:
    """The server for the clients: rmqkit's, or Apache's to validate the tests."""
    kind = os.environ.get("RMQKIT_INTEROP_SERVER", "rmqkit")
    if kind not in KINDS:
        pytest.fail(f"RMQKIT_INTEROP_SERVER={kind!r}: must be one of {', '.join(KINDS)}", pytrace=False)
    chosen = request.getfixturevalue("rmqkit_server" if kind == "rmqkit" else "apache_cluster")
    assert isinstance(chosen, peers.Server)
    return chosen


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store directory that moves between Apache's store and ours."""
    return tmp_path / "store"


@pytest.fixture(params=JAVA_ENDS)
def java_store(request: pytest.FixtureRequest, directory: Path) -> list[str]:
    """The command that runs Apache's store on the directory."""
    try:
        return stores.java_command(str(request.param), directory)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
