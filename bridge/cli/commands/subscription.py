"""``bridge subscription``: adds, lists and removes subscriptions of the app's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from bridge.cli.group import Group
from bridge.cli.parameters import NON_EMPTY
from bridge.cli.subscription_view import undone_of, unread_of
from bridge.cli.target import Target
from bridge.cli.terminal import at_a_terminal, echo_json
from bridge.routing.numbers import count, data_size
from bridge.routing.terminal import console
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.inspect.subscription_status import SubscriptionStatus


@click.group(cls=Group)
def subscription() -> None:
    """Adds, lists and removes subscriptions: the logical consumers of the stream."""


@subscription.command()
@click.argument("name", type=NON_EMPTY)
@click.option(
    "--from",
    "position",
    default="start",
    show_default=True,
    metavar="start|now|ID",
    help="Where it begins: with the first message of the stream, with the next one that is pushed, or with message ID.",
)
@click.pass_obj
def add(target: Target, name: str, position: str) -> None:
    """Adds the subscription NAME: from now on it misses nothing, also while no worker and no master of it is up.

    It needs no master. NAME may be one that only another app declares.
    """
    from bridge.app.finding import reach
    from bridge.app.lanes import lanes_named
    from bridge.inspect.subscriptions import read_subscriptions
    from bridge.link.key_types import refuse_misplaced
    from bridge.operate.subscriptions import add as add_groups
    from bridge.operate.subscriptions import check_position, left_before

    check_position(position)
    declared = target.subscriptions
    lanes = lanes_named(target.app, name)
    redis = reach(target.app)
    refuse_misplaced(redis, *(lane.keys for lane in lanes))
    add_groups(redis, target.app, lanes, position, declared=name in declared)
    (found,) = read_subscriptions(redis, {name: lanes})
    unread = count(found.unread, "message") if found.unread_exact else f"at most {count(found.unread, 'message')}"
    click.echo(f"added {name} on {', '.join(found.streams)}: {unread} to read")
    if left := left_before(redis, lanes, position):
        most = "" if position == "start" else "at most "
        click.echo(
            f"{most}{count(left, 'earlier message')} had left the stream, since the other subscriptions were done with "
            f"them: {name} does not get those"
        )
    if name not in declared:
        remove_it = target.commands(lanes[0]).of_app("subscription", "remove", name)
        click.echo(
            f"no subscription of this app has this name ({', '.join(declared)}): every message from there on stays in "
            f"the stream until an app that declares it has handled it, or {remove_it}"
        )


@subscription.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Lists the subscriptions of the app, and all other consumer groups of its stream."""
    from bridge.app.finding import reach
    from bridge.inspect.subscriptions import read_subscriptions

    found = read_subscriptions(reach(target.app), target.subscriptions, others=True)
    if as_json:
        commands = target.commands(next(iter(target.subscriptions.values()))[0])
        echo_json({"subscriptions": [one.document(commands) for one in found]})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("subscription", "app", "streams", "group"):
        table.add_column(column, no_wrap=column == "subscription")
    for column in ("unread", "undone", "dead", "holds"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        app = one.app or ("" if one.declared else "not known" if one.permitted else "no permission")
        table.add_row(
            one_line(one.name),
            one_line("this app" if one.declared and not app else f"{app} (this app)" if one.declared else app),
            one_line(", ".join(one.streams)),
            "there" if one.exists else "not yet",
            unread_of(one),
            undone_of(one),
            f"{one.dead:,}" if one.permitted else "?",
            data_size(one.held_bytes),
        )
    console().print(table)


@subscription.command()
@click.argument("name", type=NON_EMPTY)
@click.option("--dry-run", is_flag=True, help="Only print what would be dropped.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def remove(ctx: click.Context, name: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Removes the subscription NAME for good: its consumer group, its dead letters, states of tickets, all its keys.

    It refuses while a master leads it or a worker serves it. Other subscriptions keep all messages.
    """
    from bridge.app.finding import reach
    from bridge.app.lanes import lanes_named
    from bridge.inspect.subscriptions import read_subscriptions
    from bridge.operate.subscriptions import States, check_removal
    from bridge.operate.subscriptions import remove as remove_lanes

    target: Target = ctx.obj
    declared = target.subscriptions
    lanes = lanes_named(target.app, name)
    redis = reach(target.app)
    states = States(redis, target.app, lanes)
    check_removal(redis, target.app, lanes, states)
    (found,) = read_subscriptions(redis, {name: lanes})
    what = f"{name} on {', '.join(found.streams)} with {dropped(found)}"
    if states.count:
        what += f", and the {count(states.count, 'state')} of its tickets"
    if not dry_run and not yes:
        if not at_a_terminal():
            raise click.UsageError(f"this would remove {what}: add --yes, or look first with --dry-run", ctx)
        if not click.confirm(f"remove {what}?", err=True):
            return
    deleted = 0 if dry_run else remove_lanes(redis, lanes) + states.delete()
    if as_json:
        document = {"dry_run": dry_run, "deleted": deleted, "states": states.count}
        echo_json({**document, **found.document(target.commands(lanes[0]))})
    elif dry_run:
        click.echo(f"would remove {what}")
    else:
        click.echo(f"removed {what}; {count(deleted, 'key')} deleted")
        if states.count is None:
            why = f"{states.needed_by} has this subscription, too" if states.needed_by else "this user may not SCAN"
            click.echo(f"states of its tickets stay, if it has any: {why}")
        if name in declared:
            click.echo("this app still declares it: a master that starts makes it again, from the stream's beginning")
        click.echo("messages that the other subscriptions are done with leave the stream: added again, it misses them")


def dropped(found: SubscriptionStatus) -> str:
    """What a removal drops, in words."""
    numbers = [
        *((found.waiting, "waiting"), (found.in_flight, "in flight")),
        *((found.awaiting_retry, "retrying"), (found.parked, "parked")),
        (found.holding, "delayed"),
    ]
    said = [f"{unread_of(found)} unread"] if found.unread else []
    said += [f"{number:,} {word}" for number, word in numbers if number]
    details = f" ({', '.join(said)})" if said else ""
    overtaken = found.delayed - found.holding
    delayed = f", {count(overtaken, 'delayed message')} that others overtake" if overtaken else ""
    return f"{undone_of(found, 'undone message')}{details}{delayed} and {count(found.dead, 'dead letter')}"
