"""Every compiled function beside its pure twin, over a few hundred seeded cases each."""

from __future__ import annotations

import pytest

pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")

from tests.speedups import twins
from tests.speedups.compare import compare
from tests.speedups.comparison import Comparer, registered

CASES = 300

twins.load()


@pytest.mark.parametrize("name", sorted(registered()))
def test_pure_and_compiled_function_agree(name: str) -> None:
    with Comparer() as comparer:
        compare(registered()[name], CASES, 1, comparer)
