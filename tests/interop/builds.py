"""Builds other projects' programs once and keeps them outside the repository.

Four things are built: the class path of Apache's servers (Maven), the Java scenarios against one client
generation (Maven), a Java program around one generation of Apache's message store (Maven), the Go scenarios
(Go). Each is stored in a folder of the cache whose name contains a hash of its inputs, so a changed source or
version gets a new folder and an unchanged one costs nothing. A build is made in a temporary folder and
renamed when complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVER_VERSION = "5.5.0"
#: The newest version of the old generation whose servers are published.
OLD_SERVER_VERSION = "4.9.7"
JAVA_CLIENT_VERSIONS = ("5.5.0", "5.3.3", "4.9.8")
JAVA_STORE_VERSIONS = ("5.5.0", "5.3.3", "4.9.8")
#: The newest and the oldest version, for tests independent of the versions in between: each version costs a
#: JVM and up to half a minute.
JAVA_ENDS = ("5.5.0", "4.9.8")
BUILD_SECONDS = 400


class BuildError(RuntimeError):
    """A tool is missing or failed; the text contains the tool and its output."""


@dataclass(frozen=True)
class JavaClient:
    """The scenarios compiled against one version of Apache's Java client."""

    version: str
    classpath: str


def cache_dir() -> Path:
    """The folder of the builds; `RMQKIT_INTEROP_CACHE` changes it."""
    root = os.environ.get("RMQKIT_INTEROP_CACHE")
    path = Path(root) if root else Path.home() / ".cache" / "rmqkit-interop"
    path.mkdir(parents=True, exist_ok=True)
    return path


def tool(name: str) -> str:
    """The path of a required program."""
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"the interop suite needs {name}, and there is no {name} in PATH")
    return found


def apache_server_classpath(version: str = SERVER_VERSION) -> str:
    """Class path for NamesrvStartup and BrokerStartup of this version."""
    tool("java")
    folder = HERE / "apache"

    def build(out: Path) -> None:
        properties = [f"-Drocketmq.version={version}", f"-Dmdep.outputFile={out / 'classpath'}"]
        _run([tool("mvn"), *_MAVEN, "dependency:build-classpath", *properties], folder)

    return (_built(f"server-{version}", [folder / "pom.xml"], build) / "classpath").read_text().strip()


def apache_proxy_classpath() -> str:
    """Class path for ProxyStartup, which runs a broker as well."""
    tool("java")
    folder = HERE / "apache-proxy"

    def build(out: Path) -> None:
        output = f"-Dmdep.outputFile={out / 'classpath'}"
        _run([tool("mvn"), *_MAVEN, "dependency:build-classpath", output], folder)

    return (_built("apache-proxy", [folder / "pom.xml"], build) / "classpath").read_text().strip()


def java_client(version: str) -> JavaClient:
    """The Java scenarios, compiled against this version of the client."""
    return JavaClient(version, _java_program("java", version))


def java_store(version: str) -> str:
    """Class path of the program around this version of Apache's message store
    (rmqkit.interop.store.StoreProgram)."""
    return _java_program("java-store", version)


def java_admin(version: str) -> JavaClient:
    """The calls of mqadmin, compiled against this version of Apache's tools
    (rmqkit.interop.admin.AdminProgram)."""
    return JavaClient(version, _java_program("java-admin", version))


def java_verbs(version: str) -> str:
    """Class path of the program that calls verbs of this version of mqadmin
    (rmqkit.interop.verbs.VerbsProgram)."""
    return _java_program("java-verbs", version)


def _java_program(name: str, version: str) -> str:
    tool("java")
    folder = HERE / name

    def build(out: Path) -> None:
        properties = [
            f"-Drocketmq.version={version}",
            f"-Dinterop.out={out}",
            f"-Dmdep.outputFile={out / 'classpath'}",
        ]
        _run([tool("mvn"), *_MAVEN, "package", "dependency:build-classpath", *properties], folder)

    sources = [folder / "pom.xml", *sorted((folder / "src").rglob("*.*"))]
    out = _built(f"{name}-{version}", sources, build)
    return f"{out / 'interop.jar'}{os.pathsep}{(out / 'classpath').read_text().strip()}"


def go_client() -> Path:
    """The Go scenarios as one binary."""
    folder = HERE / "go"

    def build(out: Path) -> None:
        _run([tool("go"), "build", "-trimpath", "-buildvcs=false", "-o", str(out / "interop"), "."], folder)

    sources = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
    return _built("go", sources, build) / "interop"


def grpc_java() -> str:
    """Class path of RocketMQ's Java client of version 5."""
    tool("java")
    folder = HERE / "grpc-java"

    def build(out: Path) -> None:
        _run(
            [tool("mvn"), *_MAVEN, "dependency:build-classpath", f"-Dmdep.outputFile={out / 'classpath'}"],
            folder,
        )

    return (_built("grpc-java", [folder / "pom.xml"], build) / "classpath").read_text().strip()


def grpc_go(program: str) -> Path:
    """A program over RocketMQ's Go client of version 5, as a binary."""
    folder = HERE / "grpc-go"

    def build(out: Path) -> None:
        for name in ("go.mod", "go.sum"):
            shutil.copy(folder / name, out)
        (out / "main.go").write_text(program)
        _run([tool("go"), "build", "-trimpath", "-buildvcs=false", "-o", "program", "."], out)

    sources = [folder / "go.mod", folder / "go.sum"]
    return _built(f"grpc-go-{hashlib.sha256(program.encode()).hexdigest()[:8]}", sources, build) / "program"


def grpc_rust(program: str) -> Path:
    """A program over RocketMQ's Rust client of version 5, as a binary. The first one takes minutes."""
    folder = HERE / "grpc-rust"

    def build(out: Path) -> None:
        shutil.copy(folder / "Cargo.toml", out)
        (out / "src").mkdir()
        (out / "src" / "main.rs").write_text(program)
        _run([tool("cargo"), "build", "--quiet"], out)

    digest = hashlib.sha256(program.encode()).hexdigest()[:8]
    return _built(f"grpc-rust-{digest}", [folder / "Cargo.toml"], build) / "target" / "debug" / "orders"


def grpc_node() -> Path:
    """The folder of modules with RocketMQ's client for Node."""
    folder = HERE / "grpc-node"

    def build(out: Path) -> None:
        shutil.copy(folder / "package.json", out)
        _run([tool("npm"), "install", "--silent", "--no-audit", "--no-fund"], out)

    return _built("grpc-node", [folder / "package.json"], build) / "node_modules"


_MAVEN = ("--batch-mode", "--quiet")


def _built(name: str, sources: list[Path], build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    target = cache_dir() / f"{name}-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_dir()))
    try:
        build(fresh)
        try:
            fresh.rename(target)
        except OSError:
            # Another run has completed the same build, whose result is equivalent.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise BuildError(
            f"{Path(command[0]).name} did not end within {BUILD_SECONDS} s in {folder.name}"
        ) from late
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise BuildError(
            f"{Path(command[0]).name} failed in {folder.name} with exit code {done.returncode}:\n{said}"
        )
