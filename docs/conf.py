"""How the pages are built: ``make docs``. Markdown by MyST, the look by Furo, diagrams by Mermaid."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Ticket Bridge"
author = "Ticket Bridge"
project_copyright = author
release = version = PROJECT["version"]

extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
# A reference that leads nowhere is a warning, and with `-W` an error.
nitpicky = True

# "slug" gives headings the anchors that GitHub gives them, so one link works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "colon_fence"]
# A ```mermaid block is a diagram here as it is on GitHub.
myst_fence_as_directive = ["mermaid"]

# Example code with an ellipsis, or output among commands, is no code that a lexer must accept.
suppress_warnings = ["misc.highlighting_failure"]

# The browser draws the diagrams by a script from the network. Without a network the reader sees the diagram's text.
mermaid_output_format = "raw"

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path: list[str] = []
# The button copies commands without their prompt and their output.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
