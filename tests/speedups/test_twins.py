"""Every compiled function beside its pure twin, over a few hundred seeded cases each."""

from __future__ import annotations

import pytest

from rmqkit import speedups

if not speedups.BUILT:
    pytest.skip("the compiled part was not built here", allow_module_level=True)

from tests.speedups import twins
from tests.speedups.compare import compare
from tests.speedups.comparison import Comparer, registered

CASES = 300

twins.load()


@pytest.mark.parametrize("name", sorted(registered()))
def test_pure_and_compiled_function_agree(name: str) -> None:
    with Comparer() as comparer:
        compare(registered()[name], CASES, 1, comparer)
