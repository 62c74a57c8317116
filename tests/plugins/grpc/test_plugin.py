"""The plugin as it is loaded."""

from __future__ import annotations

import subprocess
import sys

#: Imports what a broker imports at its start, where there is no protobuf.
_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "google":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import rmqkit_grpc.backend, rmqkit_grpc.plugin, rmqkit_grpc.service
"""


def test_it_is_loaded_without_the_extra() -> None:
    """The messages of protobuf are imported by who serves them."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
