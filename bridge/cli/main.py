"""The command ``bridge``: also ``python -m bridge``, and ``celery -A tasks bridge …`` as a plugin of Celery's.

Every celery command loads this file, so it imports little. A command's module is loaded when the command is called.

Exit codes: 0 done, 1 failed or found something, 2 wrong usage. An error is one line on standard error.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.group import Group
from bridge.cli.target import OF_A_VERSION, SUBSCRIPTION, VERSION, WITHOUT_SUBSCRIPTION, Target
from bridge.inspect.advice import DEFAULT_APP

if TYPE_CHECKING:
    from celery import Celery

    from bridge.routing.errors import TicketBridgeError

#: Command -> its module and name.
COMMANDS = {
    "run": "bridge.cli.commands.run:run",
    "up": "bridge.cli.commands.stack:up",
    "demo": "bridge.cli.commands.stack:demo",
    "push": "bridge.cli.commands.push:push",
    "status": "bridge.cli.commands.status:status",
    "ticket": "bridge.cli.commands.ticket:ticket",
    "consumer": "bridge.cli.commands.consumer:consumer",
    "pending": "bridge.cli.commands.pending:pending",
    "dead": "bridge.cli.commands.dead:dead",
    "delayed": "bridge.cli.commands.delayed:delayed",
    "subscription": "bridge.cli.commands.subscription:subscription",
    "stream": "bridge.cli.commands.stream:stream",
    "schedule": "bridge.cli.commands.schedule:schedule",
    "audit": "bridge.cli.commands.audit:audit",
    "acl": "bridge.cli.commands.acl:acl",
    "spark": "bridge.cli.commands.spark:spark",
}

#: Help that click raises as an error. Before click 8.2 it is none.
_HELP: type[click.ClickException] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())


class Commands(Group):
    """Loads a command when it is called, and prints an error of it as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        if cmd_name not in WITHOUT_SUBSCRIPTION:
            SUBSCRIPTION.add_to(command)
        if cmd_name in OF_A_VERSION:
            VERSION.add_to(command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        # It reads the options that stand before the command.
        try:
            return super().make_context(*args, **extra)
        except click.ClickException as exc:
            raise _on_one_line(exc) from None
        except OSError as exc:
            # Help or the version could not be written.
            shown = _translated(exc)
            if shown is None:
                raise
            raise click.ClickException(str(shown)) from None

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
            # Python has the second one in the locale C. A name may have characters that the terminal's encoding lacks.
            # They are printed as escapes (``\xdc``).
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as exc:
            if exc.option_name in ("-A", "--app"):
                usage = f"put it before the command: {ctx.command_path} {exc.option_name} APP …"
                raise click.UsageError(f"{exc.option_name} is an option of {ctx.command_path}; {usage}", ctx) from None
            raise _on_one_line(exc) from None
        except click.ClickException as exc:
            raise _on_one_line(exc) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as exc:
            from bridge.cli.terminal import echo_error

            shown = _translated(exc)
            if shown is None:
                raise
            target = ctx.find_object(Target)
            echo_error(str(shown) if target is None else target.completed(str(shown)))
            ctx.exit(shown.exit_code)


def _on_one_line(exc: click.ClickException) -> click.ClickException:
    """``exc`` with a message of one line: click puts names into it as they are. Help, which is one for click, stays."""
    if isinstance(exc, _HELP):
        return exc
    from bridge.routing.text import printable

    text = exc.format_message()
    if isinstance(exc, click.MissingParameter):
        # click itself lists the choices on lines. No text of a user is in it.
        text = " ".join(text.split())
    shown = click.ClickException(printable(text))
    if isinstance(exc, click.UsageError):
        shown = click.UsageError(printable(text), exc.ctx)
    return shown


def _translated(exc: Exception) -> TicketBridgeError | None:
    """The error to print for ``exc``, which is the end of the command; None for a bug."""
    from bridge.link.failures import translated

    shown = translated(exc)
    if shown is not None:
        _drop_unwritten()
    return shown


def _drop_unwritten() -> None:
    """Drops output that cannot be written. Python would try again when it ends, and print a second error."""
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _app_of_celery(ctx: click.Context) -> tuple[str | None, Celery | None]:
    """The app that ``celery -A APP bridge …`` names, and has loaded. None: Celery was called without -A, or not at
    all.
    """
    named = None if ctx.parent is None else ctx.parent.params.get("app")
    if ctx.parent is None or not named:
        # Without -A Celery makes an app without configuration.
        return None, None
    # A program that calls Celery's command line may hand over the app itself.
    return named if isinstance(named, str) else None, getattr(ctx.parent.obj, "app", None)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from bridge.protocol.agreement import package_version

        click.echo(f"ticket-bridge {package_version()}")
        ctx.exit()


@click.command(name="bridge", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-A", "--app", "name", default=None, metavar="APP", help="The Celery app, as for celery -A.  [default: tasks]"
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context, name: str | None) -> None:
    """Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run."""
    of_celery, app = (name, None) if name else _app_of_celery(ctx)
    ctx.obj = Target(of_celery or DEFAULT_APP, app)


def main() -> None:
    """The console script."""
    cli(prog_name="bridge")
    sys.exit(0)
