"""Hypothesis keeps its files outside the checkout: a `.hypothesis` directory in the root would be met (and warned of) while collecting."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"rmqkit-hypothesis-{os.getuid()}")
