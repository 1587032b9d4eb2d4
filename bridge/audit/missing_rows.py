"""Which rows of a history may be missing, since its length is bounded: what their absence does not prove."""

from __future__ import annotations

from bridge.routing.ids import IdKey, id_key


class MissingRows:
    """What is known about rows that are not in the history. ``since``: older entries do not belong to the lane."""

    def __init__(self, since: str, skew_us: int) -> None:
        self._since = id_key(since)
        self._skew_ms = skew_us // 1000
        #: Rows written before this time may be missing (Unix ms by the server's clock). None: no row is missing.
        self.until_ms: int | None = None
        #: Rows of replays may be among them.
        self.replays_hidden = False
        #: All last rows and all replays are here. Other rows that were written before this may be missing (Unix ms).
        self.uncounted_until_ms: int | None = None
        #: All rows of messages from this id on are here.
        self.covered_from: IdKey = self._since

    def add(self, until_ms: int, *, replays_hidden: bool) -> None:
        """Rows that were written up to ``until_ms`` may be missing."""
        self.until_ms = until_ms
        self.replays_hidden = replays_hidden
        # After a failover the server's clock may be behind by the skew.
        self.covered_from = max(self._since, (until_ms + self._skew_ms + 1, 0))

    def covers(self, key: IdKey) -> bool:
        """Whether all rows of the message with this id are here, if there are any."""
        return key >= self.covered_from

    def hides_replay(self, key: IdKey) -> bool:
        """Whether the row of a replay of this message may be missing."""
        return self.until_ms is not None and self.replays_hidden and not self.covers(key)

    def begins_here(self, key: IdKey) -> bool:
        """Whether the first row of the message is here. If not, it may have been delayed: others may overtake it, and
        it may end after younger ones.
        """
        if self.until_ms is not None:
            return self.covers(key)
        return self.uncounted_until_ms is None or key[0] > self.uncounted_until_ms + self._skew_ms
