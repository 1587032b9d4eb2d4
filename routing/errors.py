"""Every error that Ticket Bridge raises on purpose, in one tree.

Each message is one line that says what is wrong and what to do. The command line prints it and exits with
``exit_code``. It never shows a stack trace.
"""

from __future__ import annotations

from collections.abc import Sequence


class TicketBridgeError(Exception):
    """Root of all errors of Ticket Bridge."""

    exit_code = 1


class ConfigurationError(TicketBridgeError):
    """A setting, an option or an app that cannot work. It is found before anything is changed."""

    exit_code = 2


class StreamRetired(ConfigurationError):
    """The stream was retired: nobody handles messages there. Nothing was pushed."""


class LayoutLost(ConfigurationError):
    """The stream is split, and the key that says how was deleted. A master that runs stores it again in a moment."""


class InputError(TicketBridgeError):
    """Input that cannot be used: a missing file, a malformed row. The message names the place."""

    exit_code = 1


class ServerUnavailable(TicketBridgeError):
    """The Redis server cannot be reached, does not answer like Redis, or refuses the command.

    ``pushed``: ids of the first messages of a push, in order, that are certainly in the stream.
    """

    def __init__(self, message: str, pushed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.pushed = tuple(pushed)


class Unanswered(ServerUnavailable):
    """A command was sent and got no answer. It may have been carried out or not."""


class ServerTooOld(TicketBridgeError):
    """The Redis server is older than 6.2 and lacks commands that the bridge needs."""


class ServerUnfit(TicketBridgeError):
    """The Redis server is set up in a way that the bridge cannot work with: cluster mode, eviction of keys, or disabled
    commands.
    """


class ServerStartFailed(TicketBridgeError):
    """An embedded server, or another process of a stack, did not come up."""


class PortInUse(ServerStartFailed):
    """The address that a process was asked to listen on is taken."""


class DuplicateConsumer(TicketBridgeError):
    """Two live workers have the same node name."""


class LaneGone(TicketBridgeError):
    """Nobody serves the lane any more: its stream was retired, or is a partition that the whole stream has left."""


class NotLeading(TicketBridgeError):
    """A write was refused because this master does not lead the lane, or not any more."""


class LaneConflict(TicketBridgeError):
    """The leader's picture of the lane differs from Redis. The leader reads the lane again."""


class DispatchRefused(TicketBridgeError):
    """Messages of other versions of the stream go before those that a step would dispatch. Nothing was changed.

    ``tickets``: those that must wait. Empty: the leader of ``behind``, an older version, must read on first.
    """

    def __init__(self, message: str, tickets: Sequence[str] = (), behind: str = "") -> None:
        super().__init__(message)
        self.tickets = tuple(tickets)
        self.behind = behind


class GroupMoved(LaneConflict):
    """The lane's group was set back or forward by hand."""


class StaleFence(TicketBridgeError):
    """An outcome or effect came with a fence that is not the current one; it changed nothing."""


class PayloadError(TicketBridgeError):
    """A message that cannot be sent: no ticket, not JSON, or too large."""


class KeyUsed(PayloadError):
    """Other messages were pushed under the idempotency key before."""


class OptionError(PayloadError, ValueError):
    """An option of a message that cannot be: a delay below 0, an eta that is past or has no time zone."""


class OptionTypeError(PayloadError, TypeError):
    """An option of a message that has the wrong type, such as an eta that is no datetime."""


class OrderFailed(TicketBridgeError):
    """An operator's order that was refused, or that no leader answered."""


class NothingToDo(OrderFailed):
    """An order that changed nothing: all is as it asks for, or what it is about is not there."""


class StackFailed(TicketBridgeError):
    """A process of ``bridge up`` or ``bridge demo`` ended when it should have run."""


class StreamFull(TicketBridgeError):
    """There was no room in time: the stream stays at its high-water mark, or the server is out of memory."""


class RunChanged(TicketBridgeError):
    """A repeated write has other rows than the first attempt. None of them was written."""


class RowsMissing(TicketBridgeError):
    """The server has fewer rows of a write than it acknowledged: it lost its last writes, or keys were deleted."""


class EntriesLost(TicketBridgeError):
    """Entries are gone from the stream: they were trimmed or deleted before they were read."""
