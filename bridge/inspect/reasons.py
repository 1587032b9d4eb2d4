"""Says in one sentence why a ticket does not move, and why a lane reads nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.inspect.advice import NOT_OF_AN_APP, Advice
from bridge.inspect.delayed import Mode
from bridge.inspect.ticket_state import TicketState
from bridge.routing.history import What
from bridge.routing.numbers import count, duration, moment
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.inspect.scans import Scan
    from bridge.inspect.ticket_facts import InFlight, Parked, Retry, TicketFacts
    from bridge.settings.lane import LaneSettings

#: What became of a message that was not handled.
_ENDED = {
    What.LEFT_OUT: "was left out: the filter and the tasks of this subscription do not want it",
    What.SKIPPED: "was skipped, and not handled: the lane was beyond bridge_max_lag",
    What.DROPPED: "was dropped by its task",
    What.CANCELLED: "was cancelled while it was delayed",
    What.REFUSED: "was refused: it could not be processed",
    What.DEAD: "died, and its dead letter is gone, or is not among those that were searched",
}


#: How a lane, or a subscription, is stopped by ``bridge_max_lag`` with `park`, and what to do.
BEYOND_LAG = (
    "reads nothing new, since it is beyond bridge_max_lag, and stays so: raise the limit and start its masters again"
)


def no_leader(commands: Advice) -> str:
    """Says that no master leads the lane."""
    return f"no master leads, so nothing is dispatched or settled: start one with {commands.master}"


def no_consumer(commands: Advice) -> str:
    """Says that no consumer of the lane is alive."""
    return f"no consumer is alive: start a worker with {commands.worker}"


def reading_stops(lane: LaneSettings, *, stopped: bool, dead: int, commands: Advice) -> list[str]:
    """Why the lane reads nothing new: a sentence each. ``stopped``: by its limit for the lag."""
    found = []
    if stopped:
        found.append(f"the lane {BEYOND_LAG}")
    if dead >= lane.dead_max:
        found.append(
            f"{count(dead, 'dead letter')}, and bridge_dead_max is {lane.dead_max:,}: nothing new is read; "
            f"{commands.bridge('dead', 'list')}, then replay or drop some"
        )
    return found


def why(found: TicketFacts, commands: Advice = NOT_OF_AN_APP) -> str:
    """The sentence. It names what stops the ticket first, and says what to do if an operator can do something."""
    behind = _behind(found)
    if found.in_flight is not None:
        return _in_flight(found, found.in_flight, commands) + behind
    if found.parked is not None:
        return _parked(found, found.parked, commands)
    if found.retry is not None:
        return _retry(found, found.retry, commands) + behind
    if found.state is TicketState.WAITING:
        return _waiting(found, commands)
    if found.state is TicketState.UNREAD:
        # Older messages may be waiting that the search did not reach.
        return _unread(found, commands) + _not_searched(found)
    if found.state is TicketState.DELAYED:
        return f"{_delayed(found, commands)}; no other message of it is undone{_not_searched(found)}"
    return _at_rest(found) + _not_searched(found)


def _at_rest(found: TicketFacts) -> str:
    letter = next((one for one in found.letters if found.last_done in (None, one.message_id)), None)
    if found.state is TicketState.DEAD and letter is not None:
        error = f": {one_line(letter.error)}" if letter.error else ""
        return (
            f"nothing undone was found; its last message {letter.message_id} is a dead letter: {letter.reason}{error}"
        )
    if found.state in (TicketState.DEAD, TicketState.DONE):
        ended = "is done" if found.last_what is None else _ENDED.get(found.last_what, "is done")
        return f"nothing undone found; its last message {found.last_done} {ended}"
    return (
        "nothing was found of it: no record, nothing waiting, nothing unread, no dead letter, and none of the newest "
        f"entries belongs to it{'' if found.has_group else ' (no master has read this stream yet)'}"
    )


def _not_searched(found: TicketFacts) -> str:
    """Says what a search did not reach. Messages of the ticket may be there."""
    parts = []
    for scan, where in (
        (found.waiting, "messages that wait"),
        (found.unread, "unread messages"),
        (found.delayed, "delayed messages"),
    ):
        if not scan.complete:
            parts.append(f"only the first {scan.looked_at:,} {where} were searched; there are more")
    return f"; {', and '.join(parts)}" if parts else ""


def _in_flight(found: TicketFacts, run: InFlight, commands: Advice) -> str:
    what = f"{count(len(run.message_ids), 'message')} in flight on {run.consumer} for {duration(run.since_ms)}"
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    if run.park_reason is not None:
        attempt += f"; the ticket is to be parked after it: {run.park_reason}"
    if found.leader is None:
        return f"{what}{attempt}; {no_leader(commands)}"
    if not run.consumer_alive:
        end = "whose lease is over: the leader moves the ticket"
        if not found.consumers_alive:
            return f"{what}{attempt}, {end} as soon as there is a consumer; {no_consumer(commands)}"
        return f"{what}{attempt}, {end} to another consumer"
    alive = f"the consumer is alive (lease {duration(run.lease_ms)} left)"
    return f"{what}{attempt}; {alive}, so the task is running, or starts soon or as its rate_limit allows"


def _parked(found: TicketFacts, parked: Parked, commands: Advice) -> str:
    reason = f": {parked.reason}" if parked.reason else ""
    held = [f"{_many(found.waiting, 'message')} waiting for it"]
    if found.unread.count:
        held.append(f"{_many(found.unread, 'message')} not read yet")
    what = f"parked for {duration(parked.since_ms)}{reason}"
    release = commands.bridge("ticket", "release", about=found.ticket)
    return f"{what}; it stands still until it is released: {release} ({', '.join(held)})"


def _delayed(found: TicketFacts, commands: Advice) -> str:
    """When the next delayed message is due, and what the ticket does until then."""
    message, left = found.next_delayed, found.next_due_in_ms
    if message is None or left is None:
        return ""
    does = "later messages of the ticket wait for it" if message.mode is Mode.HOLD else "later messages go first"
    if left <= 0:
        # It comes behind the unread messages that were pushed before it was due.
        stop = _stop(found, commands) or (found.reading_stop if found.unread.looked_at else "")
        return f"message {message.id} was delayed, and is due now; {stop or 'the leader takes it in when it has room'}"
    more = f"; {_many(found.delayed, 'message')} delayed in all" if found.delayed.count > 1 else ""
    return f"delayed until {moment(message.due_ms)}, in {duration(left)}: message {message.id}; {does}{more}"


def _retry(found: TicketFacts, retry: Retry, commands: Advice) -> str:
    if retry.is_held and retry.due_in_ms > 0:
        stop = _stop(found, commands)
        held = f"message {retry.message_id} is delayed and holds its ticket: it is due in {duration(retry.due_in_ms)}"
        return f"{held}; {stop}" if stop else held
    cause = f": {retry.last_error}" if retry.last_error else ""
    if retry.due_in_ms > 0:
        what = f"attempt {retry.attempt} of {retry.max_attempts} is due in {duration(retry.due_in_ms)}{cause}"
    else:
        what = f"attempt {retry.attempt} of {retry.max_attempts} is due now{cause}"
    stop = _stop(found, commands)
    if stop:
        return f"{what}; {stop}"
    return what if retry.due_in_ms > 0 else f"{what}; it goes out as soon as a consumer has room"


def _waiting(found: TicketFacts, commands: Advice) -> str:
    what = f"{_many(found.waiting, 'message')} waiting to be dispatched, the oldest is {found.waiting.ids[0]}"
    return f"{what}; {_stop(found, commands) or 'it goes out as soon as a consumer that takes work has room'}"


def _unread(found: TicketFacts, commands: Advice) -> str:
    what = f"{_many(found.unread, 'message')} not read yet, the oldest is {found.unread.ids[0]}"
    if not found.has_group:
        return f"{what}; no master has ever led this lane: start one with {commands.master}"
    stop = _stop(found, commands) or found.reading_stop
    return f"{what}; {stop or 'the leader reads more when it has dispatched the messages in memory'}"


def _stop(found: TicketFacts, commands: Advice) -> str:
    if found.leader is None:
        return no_leader(commands)
    if not found.consumers_alive:
        return no_consumer(commands)
    return found.nobody_runs


def _behind(found: TicketFacts) -> str:
    parts = []
    if found.waiting.count:
        parts.append(f"{_many(found.waiting, 'message')} waiting behind")
    if found.unread.count:
        parts.append(f"{_many(found.unread, 'message')} not read yet")
    if found.delayed.count and found.next_due_in_ms is not None and not (found.retry and found.retry.is_held):
        parts.append(f"{_many(found.delayed, 'message')} delayed, the next is due in {duration(found.next_due_in_ms)}")
    return f" ({', '.join(parts)})" if parts else ""


def _many(scan: Scan, thing: str) -> str:
    return ("" if scan.complete else "at least ") + count(scan.count, thing)
