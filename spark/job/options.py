"""The options that every job has: how Spark runs it, and how it reports progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Job = TypeVar("_Job", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--master", help="Spark master [default: local[*]]."),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark's configuration (catalogs, file systems)."),
    click.option("--progress", type=click.Choice(["text", "json", "none"]), default="text", show_default=True),
    click.option("--spark-log", type=click.Path(path_type=Path), help="Keep Spark's own output in this file."),
)


def job_options(job: _Job) -> _Job:
    """Gives ``job`` its arguments ``master``, ``conf`` (as `parse_conf` takes it), ``progress``, ``spark_log``."""
    for option in reversed(_OPTIONS):
        job = option(job)
    return job
