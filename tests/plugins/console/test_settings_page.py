"""The page of settings."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.console.asking import asking


async def test_settings_with_their_origin(tmp_path: Path) -> None:
    """Those that are set are told apart from defaults, and may be looked for."""
    async with asking(tmp_path) as ask:
        rows = {each["key"]: each for each in (await ask.values("/settings"))["settings"]}
        assert rows["enablePropertyFilter"]["origin"] == "set"
        assert rows["enablePropertyFilter"]["values"] == {"broker-a": "true"}
        assert rows["enablePropertyFilter"]["default"] == "false"
        assert rows["flushDiskType"]["origin"] == "default"
        is_set = (await ask.values("/settings", which="set"))["settings"]
        assert {each["origin"] for each in is_set} == {"set"}
        assert len(is_set) < len(rows)
        assert (await ask.values("/settings", which="differing"))["settings"] == []
        found = (await ask.values("/settings", find="propertyfilter"))["settings"]
        assert [each["key"] for each in found] == ["enablePropertyFilter"]
        html = await ask.page("/settings", find="flushDiskType")
        assert "ASYNC_FLUSH" in html
        assert "No setting matches." in await ask.page("/settings", find="<none>")
        assert "choose all, set, differing" in await ask.page("/settings", 400, which="x")
