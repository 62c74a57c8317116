"""No module imports itself through others, and the check would notice it."""

from __future__ import annotations

import tomllib

from tests import imports


def test_no_modules_import_each_other() -> None:
    """Imports for type checking and those of the compiled part count; a failure shows the circle."""
    of = imports.graph()
    found = imports.circles(of)
    assert not found, "\n\n".join(imports.drawn(group, of) for group in found)


def test_the_graph_covers_python_and_compiled_modules() -> None:
    """The sources of the kernel, of plugins and of compiled modules are read, with their imports."""
    of = imports.graph()
    assert "rmqkit.model.message" in of["rmqkit.client.hooks"]
    assert any(each.startswith("rmqkit.plugin") for each in of["rmqkit_store_mmap.store"])
    compiled = [name for name, paths in imports.sources().items() if paths[0].suffix == ".pyx"]
    assert compiled
    assert any(of[name] for name in compiled)


def test_a_circle_is_found_and_drawn() -> None:
    """Three modules in a circle are one group; a module beside them is not in it."""
    of = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert imports.circles(of) == [["a", "b", "c"]]
    assert imports.drawn(["a", "b", "c"], of) == "a imports b\nb imports c\nc imports a"


def test_every_form_of_an_import_is_read() -> None:
    """Plain and `from` imports, those behind TYPE_CHECKING, and Cython's own."""
    python = "import a.b\nfrom c import d, e\nif TYPE_CHECKING:\n    from f import g\n"
    assert set(imports.imported(python, ".py")) == {"a.b", "c.d", "c.e", "f.g"}
    cython = "cimport a.b\nfrom c cimport d, e\nfrom f import g as h\n"
    assert set(imports.imported(cython, ".pyx")) == {"a.b", "c.d", "c.e", "f.g"}


def test_compiled_modules_keep_to_the_layers() -> None:
    """The linter of imports does not read Cython, so the layers of its contract are applied here."""
    of = imports.graph()
    layers = imports.layers()
    assert not imports.against(layers, of)
    compiled = {name for name, paths in imports.sources().items() if paths[0].suffix != ".py"}
    assert any(target in compiled for name in compiled for target in of[name])


def test_imports_against_the_layers_are_found() -> None:
    """An import of a higher layer, and one of a package beside it; those downwards are right."""
    layers = [[frozenset({"k.a"}), frozenset({"k.b"})], [frozenset({"k.c", "k.d"})]]
    of = {
        "k.a.x": frozenset({"k.b.y", "k.c.z", "other"}),
        "k.c.z": frozenset({"k.a.x", "k.d"}),
        "other": frozenset({"k.a.x"}),
    }
    assert imports.against(layers, of) == ["k.a.x imports k.b.y", "k.c.z imports k.a.x"]


def test_no_import_of_the_kernel_is_kept_from_the_linter() -> None:
    """An exception for a compiled module would hide a circle through it."""
    text = (imports.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    ignored = [line for each in contracts for line in each.get("ignore_imports", ())]
    assert not [line for line in ignored if line.startswith("rmqkit.")]
