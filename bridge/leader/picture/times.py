"""The times that a picture goes by. No I/O; `bridge.link.server_clock` has them."""

from __future__ import annotations

from typing import Protocol


class Times(Protocol):
    """The clock of a lane. All times are Unix ms."""

    def lane_ms(self) -> int:
        """For durations: no step of the server's clock is in it."""
        ...

    def server_ms(self) -> int:
        """The server's present time, for what is shown or stored."""
        ...

    def settled_ms(self) -> int:
        """The server's time without the steps of the last lease. Backoffs are counted by it."""
        ...

    def due_ms(self) -> int:
        """The time by which a message is due, or has expired: the earlier one of the two above."""
        ...

    def settled_steps_ms(self) -> int:
        """The sum of the steps that the settled time has taken."""
        ...
