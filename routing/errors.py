"""Every error that Ticket Bridge raises on purpose, in one tree.

Each message is one line that says what is wrong and what to do. The command line prints it and exits with
``exit_code``; nothing of it is ever shown as a stack trace.
"""

from __future__ import annotations

from collections.abc import Sequence


class TicketBridgeError(Exception):
    """Root of all errors of Ticket Bridge."""

    exit_code = 1


class ConfigurationError(TicketBridgeError):
    """A setting, an option or an application that cannot work; found before anything was changed."""

    exit_code = 2


class InputError(TicketBridgeError):
    """Input that cannot be used: a missing file, a malformed row. Names the place."""

    exit_code = 1


class ServerUnavailable(TicketBridgeError):
    """The Redis server cannot be reached, does not answer as one, or refuses what it was asked.

    ``pushed``: ids of those messages of a push that are in for certain, the first ones, in order.
    """

    def __init__(self, message: str, pushed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.pushed = tuple(pushed)


class Unanswered(ServerUnavailable):
    """Something was sent, and no answer came: it may have been carried out, or not."""


class ServerTooOld(TicketBridgeError):
    """The Redis server lacks commands that the bridge cannot do without (before 6.2)."""


class ServerUnfit(TicketBridgeError):
    """The Redis server is set up in a way that the bridge cannot work with: cluster mode, or eviction of keys."""


class ServerStartFailed(TicketBridgeError):
    """An embedded server, or another process of a stack, did not come up."""


class PortInUse(ServerStartFailed):
    """The address that a process was asked to listen on is taken."""


class DuplicateConsumer(TicketBridgeError):
    """Two live workers have one node name."""


class NotLeading(TicketBridgeError):
    """A write was refused because this master does not lead the lane (any more)."""


class LaneConflict(TicketBridgeError):
    """The leader's picture of a ticket is not what Redis holds; the leader reads the lane anew."""


class GroupMoved(LaneConflict):
    """Somebody set the lane's group back or forward by hand."""


class StaleFence(TicketBridgeError):
    """An outcome or effect came with a fence that is not the current one; it changed nothing."""


class PayloadError(TicketBridgeError):
    """A message that cannot be sent: no ticket, not JSON, or too large."""


class OrderFailed(TicketBridgeError):
    """An operator's order that was refused, or that no leader answered."""


class StackFailed(TicketBridgeError):
    """A process of ``bridge up`` or ``bridge demo`` ended when it should have run."""


class StreamFull(TicketBridgeError):
    """No room came in time: the stream stays at its high-water mark, or the server is out of memory."""


class RunChanged(TicketBridgeError):
    """A write that is tried again has other rows than the first attempt; nothing of it was written."""


class RowsMissing(TicketBridgeError):
    """The server has fewer rows of a write than it had acknowledged: it lost its last writes, or keys were deleted."""


class EntriesLost(TicketBridgeError):
    """Entries that were to be read are gone from the stream: trimmed or deleted before anybody read them."""
