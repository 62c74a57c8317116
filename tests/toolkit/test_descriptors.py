"""How many of a process's file descriptors connections may use."""

from __future__ import annotations

import subprocess
import sys

from rmqkit.limits import RESERVED_DESCRIPTORS

_COUNT = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
from rmqkit.toolkit.descriptors import left_for_connections
taken = []
while left_for_connections():
    taken.append(os.open(os.devnull, os.O_RDONLY))
print(max(taken))
while True:
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
print(left_for_connections())
os.close(taken[10])
print(left_for_connections())
"""


def test_half_of_few_descriptors_is_kept() -> None:
    """Connections stop at descriptor 50 of 100, and stay refused with none left; one that comes free is
    for them again."""
    count = _COUNT.format(limit=100)
    ran = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["49", "False", "True"]


def test_the_reserve_of_many_descriptors() -> None:
    """Of many descriptors, the last RESERVED_DESCRIPTORS are kept from connections."""
    count = _COUNT.format(limit=3 * RESERVED_DESCRIPTORS)
    ran = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(2 * RESERVED_DESCRIPTORS - 1), "False", "True"]
