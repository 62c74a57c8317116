"""docs/secure.md is true: its commands run, one after the other, at a server with its settings."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.test_docs import BIN, serving

DOCUMENT = Path(__file__).parents[3] / "docs" / "secure.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def test_the_commands_run(tmp_path: Path) -> None:
    """With the settings of the first block, in the order of the page, until one fails."""
    (tmp_path / "broker.toml").write_text(_blocks("toml")[0])
    commands = "\n".join(block for block in _blocks("sh") if not block.startswith("pip"))
    with serving(["--config", "broker.toml", "--set", "store=memory"], tmp_path) as where:
        env = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "NAMESRV_ADDR": where["namesrv"],
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            ["bash", "-euxc", commands], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "Custom policy Topic:Orders* Pub,Sub Allow" in done.stdout
    assert "a-password-of-orders" not in done.stdout
