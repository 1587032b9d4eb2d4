"""A group of commands: a command that it does not have is an error of one line, with the nearest one that it has."""

from __future__ import annotations

from difflib import get_close_matches

import click


class Group(click.Group):
    """A group of commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click-didyoumean prints its suggestions on further lines. Before 8.2, click itself prints the help for some
        # names, and exits with 0.
        name, names = args[0], self.list_commands(ctx)
        if name not in names:
            if ctx.resilient_parsing:
                # A shell completes a line that is not finished.
                return None, None, args[1:]
            near = get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"`{ctx.command_path} -h` lists them"
            raise click.UsageError(f"there is no command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)
