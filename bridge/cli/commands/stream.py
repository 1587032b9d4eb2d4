"""``bridge stream``: streams of the app, with their versions."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import product

import click
from rich.table import Table

from bridge.cli.main import Target
from bridge.cli.parameters import NON_EMPTY
from bridge.cli.terminal import echo_json
from bridge.routing.numbers import count
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable


@click.group()
def stream() -> None:
    """Streams and their versions."""


@stream.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Lists the streams of the app: each partition of each version, with its entries and groups."""
    from bridge.app.finding import reach
    from bridge.app.lanes import lanes_of
    from bridge.inspect.streams import read_retired, read_streams, read_unread

    target.learn()
    redis = reach(target.app)
    found = [*read_streams(redis, lanes_of(target.app)), *read_retired(redis, target.versions)]
    unread = read_unread(redis, target.app)
    if as_json:
        echo_json({"streams": found, "unread": unread})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("stream", "version", "last id", "groups"):
        table.add_column(name, no_wrap=name != "groups")
    table.add_column("entries", justify="right", no_wrap=True)
    for one in found:
        groups = one_line(", ".join(one.groups)) or "none"
        version, last = "newest" if one.version == 0 else f"{one.version} older", one.last_id or "no stream yet"
        if one.retired_ms is not None:
            version, last = "retired", _since(one.retired_ms)
        table.add_row(one_line(one.stream), version, last, groups, f"{one.entries:,}")
    for other in unread:
        table.add_row(one_line(other.stream), "no partition", "", "nobody reads it", f"{other.entries:,}")
    console().print(table)


@stream.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def info(target: Target, as_json: bool) -> None:
    """Prints how the app's stream is split, and since when."""
    from bridge.app.finding import reach
    from bridge.inspect.streams import read_unread
    from bridge.routing.keys import layout_key

    target.learn()
    unread = read_unread(reach(target.app), target.app)
    settings, layout = target.app.bridge.settings, target.app.bridge.layout
    name, streams = settings.lane.stream, layout.streams(settings.lane.stream)
    if as_json:
        echo_json(
            {
                "stream": name,
                "partitions": layout.partitions,
                "generation": layout.generation,
                "since_ms": layout.since_ms or None,
                "stored": bool(layout.text),
                "setting": settings.partitions,
                "streams": streams,
                "unread": unread,
            }
        )
        return
    since = _since(layout.since_ms)
    click.echo(f"stream     {one_line(name)}")
    click.echo(f"split      {count(layout.partitions, 'partition')}" + (f", since {since}" if layout.since_ms else ""))
    click.echo(f"streams    {one_line(streams[0])}" + (f" to {one_line(streams[-1])}" if len(streams) > 1 else ""))
    click.echo(f"layout     {layout_key(name) if layout.text else 'not stored'}")
    for one in unread:
        click.echo(f"unread     {printable(one.problem)}")


@stream.command()
@click.argument("name", metavar="STREAM", type=NON_EMPTY)
@click.option("--drop-dead", is_flag=True, help="Also with dead letters, which are dropped.")
@click.option("--dry-run", is_flag=True, help="Only check, and print what would be deleted.")
@click.option("--undo", is_flag=True, help="Let the name of a retired stream be used again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def retire(ctx: click.Context, name: str, drop_dead: bool, dry_run: bool, undo: bool, yes: bool, as_json: bool) -> None:
    """Deletes STREAM, an old version, with all keys of its lanes.

    It refuses while anything of it is undone, a master leads one of its lanes, or a worker serves one. Producers that
    push to STREAM later get an error.
    """
    from bridge.app.finding import reach
    from bridge.operate.retiring import Retirement, undo_retirement
    from bridge.protocol.agreement import refuse_other
    from bridge.routing.errors import InputError
    from bridge.settings.subscriptions import with_group

    target: Target = ctx.obj
    settings = target.app.bridge.settings
    newest = settings.lane.stream
    if name == newest:
        raise InputError(f"{one_line(name)} is the stream of this app (bridge_stream): its producers push to it")
    redis = reach(target.app)
    if undo:
        undo_retirement(redis, name, newest)
        click.echo(f"the name {one_line(name)} can be used again")
        return
    retirement = Retirement(redis, name, newest, letters=drop_dead)
    found = retirement.contents()
    if drop_dead:
        for part, group in product(found.streams, found.groups):
            lane = with_group(settings.lane, group).on_stream(part)
            if redis.exists(lane.keys.dead):
                refuse_other(redis, target.app, lane)
    deleted = retirement.check()
    numbers = (
        count(max(0, found.entries - found.letters), "done message"),
        count(len(found.groups), "group"),
        count(found.letters, "dead letter"),
    )
    what = f"{one_line(name)} with {', '.join(numbers)}"
    if not dry_run:
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"this would delete {what}: add --yes, or look first with --dry-run", ctx)
            if not click.confirm(f"delete {what}?", err=True):
                return
        deleted = retirement.carry_out()
    if as_json:
        echo_json({"dry_run": dry_run, "deleted": deleted, "stream": name, **found.document()})
    elif dry_run:
        click.echo(f"would delete {what}; {count(deleted, 'key')}")
    else:
        click.echo(f"retired {what}; {count(deleted, 'key')} deleted")
        if any(version.stream == name for version in settings.follows):
            click.echo("this app still names it in bridge_follows: take it out; masters and workers leave it out")


def _since(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
