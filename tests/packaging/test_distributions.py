"""What is built for others: a source distribution, and wheels with and without the compiled part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path
from runpy import run_path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
#: A compiler that is not there.
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without settings of this test run in its environment."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RMQKIT_", "NAMESRV_", "PYTHON", "PYTEST_"))
        and name not in ("CFLAGS", "LD_PRELOAD")
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def built(source: Path, into: Path, target: str, **environment: str) -> tuple[Path, str]:
    """The distribution that hatchling builds, and what it said."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    done = run(command, source, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.iterdir()
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this checkout, packed."""
    return built(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")[0]


@pytest.fixture
def source(sdist: Path, tmp_path: Path) -> Path:
    """The source distribution, unpacked."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / sdist.name.removesuffix(".tar.gz")


def python_without_rmqkit(folder: Path) -> Path:
    """The interpreter of a new virtual environment. It imports what this run can import, but not rmqkit."""
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    # A path, not a site directory: the editable install of the checkout does not come along.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "python"


def installed(wheel: Path, folder: Path) -> Path:
    """The program `rmqkit` of a virtual environment that has this wheel, and the dependencies of this run."""
    python = python_without_rmqkit(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    done = run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], folder)
    assert done.returncode == 0, done.stderr
    return python.with_name("rmqkit")


def modules() -> set[str]:
    """The compiled modules that the checkout has sources for: paths within a wheel, without their suffix."""
    homes = ("stores", "transports", "plugins", "hooks", "spark_connector")
    found = set()
    for source in ROOT.glob("**/*.pyx"):
        parts = source.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "rmqkit" or parts[0] in homes:
            found.add("/".join(parts[1:] if parts[0] in homes else parts))
    return found


def test_the_source_distribution_builds_both(sdist: Path) -> None:
    """It has the sources of the compiled part and the build hook, and nothing that was built; neither tests
    nor benchmarks, so that it stays below two megabytes."""
    assert sdist.stat().st_size < 2_000_000
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "pyproject.toml", "rmqkit/speedups/_build.pyx"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyd", ".o")) or name.startswith("build/")]


def test_a_wheel_with_the_compiled_part(sdist: Path, tmp_path: Path) -> None:
    """It is for this platform, has every compiled module, and its program says so and works. Built by pip
    from the source distribution, by an interpreter without rmqkit, as an installation does; not optimised,
    which takes half of the time."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    builder = tmp_path / "builder"
    builder.mkdir()
    python = python_without_rmqkit(builder)
    pip = [str(python), "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    variables = {"RMQKIT_COMPILED": "1", "CFLAGS": "-O0"}
    done = run([*pip, "--wheel-dir", tmp_path / "dist", sdist], builder, **variables)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert not wheel.name.endswith("-none-any.whl")
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition(".")[0] for name in names if name.endswith(".so")} == modules()
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".h", ".c"))]
    program = installed(wheel, tmp_path)
    assert ", compiled (built by " in run([program, "--version"], tmp_path).stdout
    assert run([program, "--version"], tmp_path, RMQKIT_PURE="1").stdout.endswith("(RMQKIT_PURE is set)\n")
    check_demo(program, tmp_path)


@pytest.mark.parametrize("kind", ["pip", "build"])
def test_metadata_is_given_without_compiling(source: Path, tmp_path: Path, kind: str) -> None:
    """pip, and tools that look at dependencies, get the metadata where a wheel could not be built at all."""
    variables = {"RMQKIT_COMPILED": "1", **NO_COMPILER}
    if kind == "pip":
        options = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
        done = run([sys.executable, "-m", "pip", "install", *options, source], tmp_path, **variables)
        assert "Would install rmqkit-" in done.stdout, done.stderr
    else:
        call = "import build_backend as it, sys; print(it.prepare_metadata_for_build_editable(sys.argv[1]))"
        done = run([sys.executable, "-c", call, tmp_path], source, **variables)
        text = (tmp_path / done.stdout.strip() / "METADATA").read_text()
        assert "Requires-Dist: trio" in text
    assert done.returncode == 0, done.stderr


def test_a_wheel_without_a_compiler(source: Path, tmp_path: Path) -> None:
    """It is pure Python for every platform, the build says that it is the slow one, and its program works.
    Before, it says how long it will take, and how to do without."""
    wheel, said = built(source, tmp_path / "dist", "wheel", **NO_COMPILER)
    assert (
        "rmqkit is compiled, which takes half a minute of one core; RMQKIT_PURE=1 builds it without" in said
    )
    assert "without its compiled part, which is slower" in said
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    program = installed(wheel, tmp_path)
    version = run([program, "--version"], tmp_path).stdout
    assert version.endswith(", pure Python (the compiled part was not built)\n")
    check_demo(program, tmp_path)


def check_demo(program: Path, folder: Path) -> None:
    done = run([program, "demo", "--messages", "2000"], folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_build_that_must_have_the_compiled_part_fails_without_a_compiler(
    source: Path, tmp_path: Path
) -> None:
    """RMQKIT_COMPILED=1 is for those who publish wheels."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = run(command, source, RMQKIT_COMPILED="1", **NO_COMPILER)
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))


def test_a_build_without_the_compiled_part_on_request(source: Path, tmp_path: Path) -> None:
    """RMQKIT_PURE=1 builds the pure wheel without a warning."""
    wheel, said = built(source, tmp_path / "dist", "wheel", RMQKIT_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "slower" not in said
    assert "is compiled" not in said


def test_another_python_is_refused_before_anything_is_compiled() -> None:
    """The error names the versions that rmqkit runs on."""
    check = run_path(str(ROOT / "hatch_build.py"))["check_python"]
    check(f">={sys.version_info.major}.{sys.version_info.minor}")
    with pytest.raises(RuntimeError, match=r"rmqkit needs Python >=99, and this is 3\."):
        check(">=99")
