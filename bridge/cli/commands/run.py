"""``bridge run``: runs a master."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.target import Target
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.http.options import HttpOptions


def _names(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ConfigurationError("--lanes: name subscriptions or partitions of them, with commas between")
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
    help="The subscriptions that it stands for, or partitions of them (NAME:p0).  [default: all, shared with the other "
    "masters]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Also listen here for HTTP consumers and producers (the extra http). An address that other machines can reach "
    "needs tokens.",
)
@click.option(
    "--http-tokens",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The tokens of HTTP callers (JSON). SIGHUP reads it again.  [default: the variable BRIDGE_HTTP_TOKENS]",
)
@click.option(
    "--http-cert",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The certificate for HTTPS, with its chain (PEM).",
)
@click.option(
    "--http-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The key of the certificate (PEM).  [default: in the same file]",
)
@click.pass_obj
def run(
    target: Target,
    loglevel: str,
    lanes: tuple[str, ...] | None,
    http: str | None,
    http_tokens: Path | None,
    http_cert: Path | None,
    http_key: Path | None,
) -> None:
    """Runs a master: leads its share of the lanes, and stands by for the others."""
    options = _http_options(http, http_tokens, http_cert, http_key)
    from bridge.master.log_lines import FORMAT, LaneOfThread, OneLine

    handler = logging.StreamHandler()
    handler.addFilter(LaneOfThread())
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=loglevel.upper(), handlers=[handler])
    logging.getLogger("kombu").setLevel(logging.WARNING)
    from bridge.app.installed import bridge_of
    from bridge.link.connections import client
    from bridge.master.process import run as run_master
    from bridge.operate.role_commands import Role
    from bridge.operate.server_commands import refuse_without_commands

    with client(bridge_of(target.app).settings.redis_url) as redis:
        refuse_without_commands(redis, Role.MASTER)
    port = None
    if options is not None:
        from bridge.http.process import HttpProcess

        # Its warnings say what clients did wrong, who got an answer. Anybody could fill the log with them.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        port = HttpProcess(target.app, options, click.echo)
    run_master(target.app, click.echo, lanes, port)


def _http_options(http: str | None, tokens: Path | None, cert: Path | None, key: Path | None) -> HttpOptions | None:
    """The options of the HTTP server; None: there is none. Raises `ConfigurationError`."""
    if http is None:
        if any(option is not None for option in (tokens, cert, key)):
            raise click.UsageError("--http-tokens, --http-cert and --http-key need --http HOST:PORT")
        return None
    if key is not None and cert is None:
        raise click.UsageError("--http-key needs --http-cert")
    from bridge.http.options import Certificate, HttpOptions, read_address, require_extra

    require_extra()
    return HttpOptions(read_address(http), tokens, None if cert is None else Certificate(cert, key))
