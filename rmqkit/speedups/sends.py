"""The compiled run of sends, where the compiled part runs; otherwise a class without instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqkit.speedups import IN_USE

if TYPE_CHECKING or IN_USE:
    from rmqkit.speedups._lines import json_lines
    from rmqkit.speedups._packing import AnswerForm
    from rmqkit.speedups._packing import pack as pack_columns
    from rmqkit.speedups._sends import Names, Places, PutColumns
else:

    class _NotBuilt:
        """Takes the place of a compiled class; never made."""

    AnswerForm = Names = Places = PutColumns = _NotBuilt
    json_lines = pack_columns = None

__all__ = ["AnswerForm", "Names", "Places", "PutColumns", "json_lines", "pack_columns"]
