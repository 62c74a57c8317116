"""A module that is long has a test of its own name, in the folder that mirrors its package."""

from __future__ import annotations

from pathlib import Path

from tests.imports import ROOT, sources

#: Modules with more lines than this have a test of their own.
LINES = 300
#: Group of packages -> the beginning of their names that the folders of tests leave out.
_PREFIXES = {
    "plugins": "rmqkit_",
    "hooks": "rmqkit_hook_",
    "stores": "rmqkit_store_",
    "transports": "rmqkit_transport_",
}


def place_of_test(module: Path) -> Path:
    """Where the test of a module is, both relative to the root of the repository."""
    group, *folders = module.parent.parts
    if group in _PREFIXES:
        folders = [group, folders[0].removeprefix(_PREFIXES[group]), *folders[1:]]
    elif group == "spark_connector":
        folders = ["spark", *folders[1:]]
    return Path("tests", *folders, f"test_{module.stem}.py")


def test_a_long_module_has_a_test_of_its_name() -> None:
    """None is without; a compiled module is tested beside its twin in Python."""
    modules = [path for paths in sources().values() for path in paths if path.suffix == ".py"]
    missing = [
        f"{module.relative_to(ROOT)}: {expected}"
        for module in modules
        if len(module.read_text(encoding="utf-8").splitlines()) > LINES
        and not (ROOT / (expected := place_of_test(module.relative_to(ROOT)))).is_file()
    ]
    assert not missing, "write the test of each of these modules:\n" + "\n".join(missing)


def test_tests_mirror_the_packages() -> None:
    """Each group of packages has its folder, and names in it are without what all of the group begin with."""
    places = {
        "rmqkit/remoting/connection.py": "tests/remoting/test_connection.py",
        "rmqkit/config.py": "tests/test_config.py",
        "plugins/rmqkit_ha/master.py": "tests/plugins/ha/test_master.py",
        "hooks/rmqkit_hook_acl/access.py": "tests/hooks/acl/test_access.py",
        "stores/rmqkit_store_mmap/log/commit_log.py": "tests/stores/mmap/log/test_commit_log.py",
        "transports/rmqkit_transport_quic/carrier.py": "tests/transports/quic/test_carrier.py",
        "spark_connector/pyspark_rocketmq/read/cluster.py": "tests/spark/read/test_cluster.py",
    }
    assert {place: str(place_of_test(Path(place))) for place in places} == places
