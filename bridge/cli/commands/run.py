"""``bridge run``: runs a master."""

from __future__ import annotations

import logging

import click

from bridge.cli.main import Target
from bridge.routing.errors import ConfigurationError


def _names(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ConfigurationError("--lanes: name subscriptions, with commas between")
    return names


@click.command()
@click.option(
    "-l",
    "--loglevel",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], False),
)
@click.option(
    "--lanes",
    metavar="NAME[,NAME…]",
    callback=_names,
    help="The subscriptions that it stands for.  [default: all, shared with the other masters]",
)
@click.pass_obj
def run(target: Target, loglevel: str, lanes: tuple[str, ...] | None) -> None:
    """Runs a master: leads its share of the lanes, and stands by for the others."""
    from bridge.master.log_lines import FORMAT, LaneOfThread

    handler = logging.StreamHandler()
    handler.addFilter(LaneOfThread())
    logging.basicConfig(level=loglevel.upper(), format=FORMAT, handlers=[handler])
    logging.getLogger("kombu").setLevel(logging.WARNING)
    from bridge.master.process import run as run_master

    run_master(target.app, click.echo, lanes)
