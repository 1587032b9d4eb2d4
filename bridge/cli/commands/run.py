"""``bridge run``: runs a master."""

from __future__ import annotations

import logging

import click

from bridge.cli.main import Target


@click.command()
@click.option(
    "-l",
    "--loglevel",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], False),
)
@click.pass_obj
def run(target: Target, loglevel: str) -> None:
    """Runs a master: leads the lane, or stands by."""
    from bridge.master.log_lines import FORMAT, LaneOfThread

    handler = logging.StreamHandler()
    handler.addFilter(LaneOfThread())
    logging.basicConfig(level=loglevel.upper(), format=FORMAT, handlers=[handler])
    logging.getLogger("kombu").setLevel(logging.WARNING)
    from bridge.master.process import run as run_master

    run_master(target.app, click.echo)
