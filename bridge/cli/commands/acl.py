"""``bridge acl``: prints the least permissions of a Redis user for its role in a lane."""

from __future__ import annotations

import json

import click

from bridge.cli.parameters import NON_EMPTY
from bridge.cli.target import Target
from bridge.operate.permissions import access
from bridge.operate.role_commands import Role

#: Characters that a user's name must not contain: an ACL file and redis-cli cannot express them.
NOT_IN_NAMES = frozenset(" \t\r\n\"'\\\0")


@click.command()
@click.argument("role", type=click.Choice([role.value for role in Role]))
@click.option("--user", type=NON_EMPTY, metavar="NAME", help="The name of the user.  [default: bridge-ROLE]")
@click.option(
    "--own-keys",
    type=NON_EMPTY,
    metavar="PATTERN",
    multiple=True,
    help="For workers: your own keys that effects of tasks write to, as an ACL pattern. May be repeated.",
)
@click.option("--pushes", is_flag=True, help="For workers: their tasks push messages.")
@click.option("--http", is_flag=True, help="For masters: they listen for HTTP (`bridge run --http HOST:PORT`).")
@click.option("--aclfile", is_flag=True, help="Print a line for an ACL file instead of a command for redis-cli.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def acl(
    target: Target,
    role: str,
    user: str | None,
    own_keys: tuple[str, ...],
    pushes: bool,
    http: bool,
    aclfile: bool,
    as_json: bool,
) -> None:
    """Prints the least permissions (ACL) that a Redis user needs as ROLE in this lane.

    Without -s these are the permissions for all subscriptions of the app.

    The user has no password. Nobody can log in until you add one: `ACL SETUSER NAME '>PASSWORD'`.
    This command needs no server.
    """
    name = user or f"bridge-{role}"
    if NOT_IN_NAMES & set(name):
        raise click.BadParameter("must not contain spaces, quotes or backslashes", param_hint="--user")
    if own_keys and role != Role.WORKER:
        raise click.BadParameter("is for the role worker: only the tasks' effects touch them", param_hint="--own-keys")
    if pushes and role != Role.WORKER:
        raise click.BadParameter("is for the role worker", param_hint="--pushes")
    if http and role != Role.MASTER:
        raise click.BadParameter("is for the role master", param_hint="--http")
    for pattern in own_keys:
        if (NOT_IN_NAMES - {"\\"}) & set(pattern):
            raise click.BadParameter("must not contain spaces or quotes; ? stands for one", param_hint="--own-keys")
    split = target.app.bridge.settings.partitions > 1
    lanes, asked = target.unsplit_lanes, Role(role)
    found = access(target.app, lanes, asked, split=split, own_keys=own_keys, pushes=pushes, http=http)
    if as_json:
        parts = {"keys": found.keys, "channels": found.channels, "commands": found.commands, "rules": found.rules}
        click.echo(json.dumps({"user": name, "role": role, **parts}))
        return
    command = ("user", name) if aclfile else ("ACL", "SETUSER", name)
    click.echo(" ".join([*command, *found.rules]))
