"""The build backend: hatchling's, which gives the metadata of the distribution without building it.

hatchling leaves these functions out where pip calls it, for projects whose build changes their dependencies.
The build of rmqkit does not, and without the functions pip builds the whole wheel, and compiles it, to read
what it depends on.
"""

from __future__ import annotations

import os

#: The variable by which hatchling knows pip.
_TRACKER = "PIP_BUILD_TRACKER"

_tracker = os.environ.pop(_TRACKER, None)
try:
    from hatchling.build import (
        build_editable,
        build_sdist,
        build_wheel,
        get_requires_for_build_editable,
        get_requires_for_build_sdist,
        get_requires_for_build_wheel,
        prepare_metadata_for_build_editable,
        prepare_metadata_for_build_wheel,
    )
finally:
    if _tracker is not None:
        os.environ[_TRACKER] = _tracker

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
