"""``bridge stream``: streams of the app, with their versions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import product
from typing import TYPE_CHECKING

import click
from rich.table import Table

from bridge.cli.group import Group
from bridge.cli.parameters import NON_EMPTY, Number
from bridge.cli.target import Target
from bridge.cli.terminal import at_a_terminal, echo_json
from bridge.routing.errors import OrderFailed
from bridge.routing.layouts import claim_layout, find_layout
from bridge.routing.numbers import count, moment
from bridge.routing.partitions import MOST, Layout
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.advice import Advice

#: Seconds between two looks at the old partitions, until they are empty.
OLD_PARTITIONS_S = 0.2
#: Commands that a sentence about several subscriptions names.
AUDITS = 3


@click.group(cls=Group)
def stream() -> None:
    """Streams and their versions."""


@stream.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Lists the streams of the app: each partition of each version, with its entries and groups."""
    from bridge.app.finding import reach
    from bridge.app.lanes import lanes_of
    from bridge.inspect.dropped import dropped_problems, read_dropped
    from bridge.inspect.streams import read_dropped_streams, read_retired, read_streams, read_unread

    target.learn()
    redis = reach(target.app)
    lanes = lanes_of(target.app)
    dropped = read_dropped(redis, lanes)
    found = [*read_dropped_streams(redis, dropped), *read_streams(redis, lanes), *read_retired(redis, target.versions)]
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
        if one.is_old:
            version = "old partition"
        if one.is_dropped:
            version = "not named"
        if one.retired_ms is not None:
            version, last = "retired", moment(one.retired_ms)
        table.add_row(one_line(one.stream), version, last, groups, f"{one.entries:,}")
    for other in unread:
        table.add_row(one_line(other.stream), "no partition", "", "nobody reads it", f"{other.entries:,}")
    console().print(table)
    for problem in dropped_problems(redis, dropped):
        click.echo(f"! {printable(problem)}")


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
                "older": None if layout.older is None else layout.older.streams(name),
                "leaving": None if layout.leaving is None else layout.leaving.streams(name),
            }
        )
        return
    since = moment(layout.since_ms)
    click.echo(f"stream     {one_line(name)}")
    click.echo(f"split      {count(layout.partitions, 'partition')}" + (f", since {since}" if layout.since_ms else ""))
    click.echo(f"streams    {one_line(streams[0])}" + (f" to {one_line(streams[-1])}" if len(streams) > 1 else ""))
    for what, before in (("followed", layout.older), ("left", layout.leaving)):
        if before is not None:
            shown = f"{count(before.partitions, 'partition')} of the layout before"
            finish = target.completed(f"finish with `bridge stream repartition {layout.partitions}`")
            click.echo(f"{what:<10} {shown}: {finish}")
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
    from bridge.app.state_home import keep_states
    from bridge.operate.retiring import Retirement, undo_retirement
    from bridge.protocol.agreement import refuse_other
    from bridge.routing.errors import InputError
    from bridge.settings.subscriptions import with_group

    target: Target = ctx.obj
    settings = target.app.bridge.settings
    newest = settings.lane.stream
    # A roll-back takes the retirement back with the app of the old version, which may be the only one that is left.
    if name == newest and not undo:
        raise InputError(f"{one_line(name)} is the stream of this app (bridge_stream): its producers push to it")
    redis = reach(target.app)
    if undo:
        undo_retirement(redis, name, newest, look=dry_run)
        if as_json:
            echo_json({"dry_run": dry_run, "stream": name, "undo": True})
        elif dry_run:
            click.echo(f"would let the name {one_line(name)} be used again")
        else:
            click.echo(f"the name {one_line(name)} can be used again")
        return
    retirement = Retirement(redis, name, newest, letters=drop_dead)
    found = retirement.contents()
    if drop_dead:
        for part, group in product(found.streams, found.groups):
            lane = with_group(settings.lane, group).on_stream(part)
            if redis.exists(lane.keys.dead):
                refuse_other(redis, target.app, lane, nameless=True)
    deleted = retirement.check()
    numbers = (
        count(max(0, found.entries - found.letters), "done message"),
        count(len(found.groups), "group"),
        count(found.letters, "dead letter"),
    )
    what = f"{one_line(name)} with {', '.join(numbers)}"
    if not as_json:
        click.echo(_gone(target, one_line(name)))
    if not dry_run:
        if not yes:
            if not at_a_terminal():
                raise click.UsageError(f"this would delete {what}: add --yes, or look first with --dry-run", ctx)
            if not click.confirm(f"delete {what}?", err=True):
                return
        if name in settings.older_streams:
            keep_states(redis, target.app)
        deleted = retirement.carry_out()
    if as_json:
        echo_json({"dry_run": dry_run, "deleted": deleted, "stream": name, **found.document()})
    elif dry_run:
        click.echo(f"would delete {what}; {count(deleted, 'key')}")
    else:
        click.echo(f"retired {what}; {count(deleted, 'key')} deleted")
        if any(version.stream == name for version in settings.follows):
            click.echo("this app still names it in bridge_follows: take it out; masters and workers leave it out")


def _commands(target: Target) -> dict[str, Advice]:
    """Subscription of this app -> how commands about it are written."""
    return {name: target.commands(lanes[-1]) for name, lanes in target.subscriptions.items()}


def _gone(target: Target, what: str) -> str:
    """Says that the history goes with ``what``."""
    audits = [commands.bridge("audit") for commands in _commands(target).values()]
    shown = " and ".join(audits[:AUDITS])
    rest = "" if len(audits) <= AUDITS else f", and so for {count(len(audits) - AUDITS, 'more subscription')},"
    prove = "proves that part" if len(audits) == 1 else "prove that part"
    return f"the history and the counters of {what} are deleted with it: run {shown}{rest} before, which {prove}"


@stream.command()
@click.argument("partitions", metavar="P", type=click.IntRange(1, MOST))
@click.option(
    "--timeout", "timeout_s", metavar="S", type=Number(0), help="Longest wait in seconds.  [default: no limit]"
)
@click.option("--drop-kept", is_flag=True, help="Also delete done entries that bridge_retention keeps.")
@click.option("--dry-run", is_flag=True, help="Only check whether it is possible.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def repartition(
    target: Target, partitions: int, timeout_s: float | None, drop_kept: bool, dry_run: bool, as_json: bool
) -> None:
    """Splits the app's stream into P partitions while it is used.

    Producers push to the new partitions at once. The old partitions are followed until all their messages are done, and
    are then deleted. The command may be stopped, and run again. Exits 1 when the old partitions are not gone in time.
    """
    from bridge.app.finding import reach
    from bridge.app.lanes import unsplit_lanes_of
    from bridge.operate import repartitioning

    target.learn()
    app, redis = target.app, reach(target.app)
    kept = [0.0] if drop_kept else [lane.settings.retention for lane in unsplit_lanes_of(app)]
    keep_s = None if None in kept else max(one for one in kept if one is not None)
    name: str = app.bridge.settings.lane.stream
    before: Layout = app.bridge.layout
    said = (lambda _line: None) if as_json else click.echo
    parts = count(partitions, "partition")
    has_begun = before.partitions != partitions or before.older is not None or before.leaving is not None
    if dry_run:
        repartitioning.check(redis, name, before, partitions)
        said(f"{one_line(name)} has {count(before.partitions, 'partition')}, and can have {parts}")
        if has_begun:
            said(_gone(target, "each old partition"))
    elif not has_begun:
        said(f"{one_line(name)} has {parts}")
    else:
        repartitioning.begin(redis, name, before, partitions)
        said(f"{one_line(name)} has {parts} for new messages")
        said(_gone(target, "each old partition"))
    why = "" if dry_run or not has_begun else _finish(redis, name, keep_s, timeout_s, said, _commands(target))
    layout = find_layout(redis, name, 1)
    if as_json:
        whole = layout.older is layout.leaving is None and not (dry_run and has_begun)
        echo_json({"stream": name, "partitions": partitions, "dry_run": dry_run, "done": whole, "why": why or None})
    if why:
        raise OrderFailed(
            f"the old partitions of {one_line(name)} are not gone: {why}; new messages go to the new partitions; run "
            "this command again to finish"
        )
    if not dry_run and app.bridge.settings.partitions != partitions:
        said(f"set bridge_partitions = {partitions} in this app")


def _finish(
    redis: Redis,
    name: str,
    keep_s: float | None,
    timeout_s: float | None,
    said: Callable[[str], object],
    commands: Mapping[str, Advice],
) -> str:
    """Waits until the old partitions are gone. Returns why they are not, after ``timeout_s`` or Ctrl-C."""
    from bridge.operate import repartitioning

    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    why = last = ""
    try:
        while True:
            layout = claim_layout(redis, name, 1)
            if not layout.text:
                # FLUSHALL, or a DEL by hand.
                why = f"the layout of {one_line(name)} is lost, and a master that runs stores it again"
            elif layout.older is not None:
                why = repartitioning.leave(redis, name, layout, commands)
                done = "the old partitions have nothing undone: masters and workers leave them"
            elif layout.leaving is None:
                return ""
            elif line := repartitioning.kept(redis, name, layout, keep_s):
                said(line)
                return ""
            else:
                why = repartitioning.clear(redis, name, layout)
                done = "the old partitions are deleted"
            if why and time.monotonic() >= until:
                return why
            if (line := why or done) != last:
                said(line)
                last = line
            if why:
                time.sleep(OLD_PARTITIONS_S)
    except KeyboardInterrupt:
        return why or "interrupted"
