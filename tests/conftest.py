"""For the whole suite: the options --store and --transport, and Hypothesis without deadlines (machines differ and are shared), with examples that do not
depend on the last run and files outside the checkout."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

pytest_plugins = ["rmqkit.testing.pytest_plugin"]

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"rmqkit-hypothesis-{os.getuid()}")
settings.register_profile("rmqkit", deadline=None, derandomize=True, database=None)
settings.load_profile("rmqkit")
