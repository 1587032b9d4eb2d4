"""``python -m bridge``."""

from __future__ import annotations

from bridge.cli.main import cli

if __name__ == "__main__":
    cli(prog_name="python -m bridge")
