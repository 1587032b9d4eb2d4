"""The command ``bridge``: also ``python -m bridge``, and ``celery -A tasks bridge …`` as a plugin of Celery's.

Every celery command loads this file, so it imports little; the commands themselves are loaded when they are called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery import Celery

#: Command -> where it is.
COMMANDS = {
    "run": "bridge.commands.run:run",
    "up": "bridge.commands.stack:up",
    "demo": "bridge.commands.stack:demo",
    "push": "bridge.commands.push:push",
    "status": "bridge.commands.status:status",
    "ticket": "bridge.commands.ticket:ticket",
    "dead": "bridge.commands.dead:dead",
}


class Commands(click.Group):
    """Loads a command when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        from routing.errors import TicketBridgeError

        try:
            return super().invoke(ctx)
        except TicketBridgeError as exc:
            click.echo(f"Error: {exc}", err=True)
            ctx.exit(exc.exit_code)


class Target:
    """The Celery app that a command is for, loaded when it is asked for."""

    def __init__(self, name: str, app: Celery | None = None) -> None:
        self.name = name
        self._app = app

    @property
    def app(self) -> Celery:
        """The app, which has the bridge. Raises `ConfigurationError`."""
        from bridge.apps import load_app
        from bridge.installation import bridge_of

        if self._app is None:
            self._app = load_app(self.name)
        bridge_of(self._app)
        return self._app


@click.command(name="bridge", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-A", "--app", "name", default=None, metavar="APP", help="The Celery app, as for celery -A.  [default: tasks]")
@click.pass_context
def cli(ctx: click.Context, name: str | None) -> None:
    """Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run."""
    # As a plugin of Celery's, the app comes with Celery's own context.
    app = getattr(ctx.obj, "app", None) if name is None else None
    ctx.obj = Target(name or "tasks", app)


def main() -> None:
    """The console script."""
    cli(prog_name="bridge")
    sys.exit(0)
