"""The share of each master: which of the masters that live should lead a lane. No I/O.

The unit that is shared is a *chain*: the lanes of one subscription and partition over all versions of the stream. Each
master computes the owner of each chain by itself, by rendezvous hashing over the masters that stand for it. All of them
come to the same result, because all read the same set of masters (`bridge.routing.leadership.attend`). When a master
comes, only the chains that it owns from now on move. When one goes, only its chains move.

The share says who asks for a lead. It does not make anybody the leader: the election does (`bridge.master.election`).
So masters whose views differ for a moment do no harm.

- A master that was named for some lanes (``bridge run --lanes``) goes before those that stand for all lanes.
- A master that had a defect in a lane leaves that chain to others for a while (it *stands aside*), unless no other
  master stands for it.
- A leader hands a chain over only when its new owner has lived for one leader lease. So a master that starts and fails
  moves nothing, and masters that start one after another move a lane once.
- When the owner of a lane does not take it within one leader lease, any master that stands for the lane takes it. It is
  not handed over to that owner for the next `REFUSED_S` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.protocol.standing import Standing, read_standing
from bridge.routing.policies import Ring

#: Seconds for which a lane is not handed over to an owner that did not take it.
REFUSED_S = 60.0


class Share:
    """The shares of a stream's masters, as the master ``holder`` sees them. Times are monotonic seconds.

    ``settle_s``: how long an owner must have lived before a lane is handed over to it.
    """

    def __init__(self, holder: str, settle_s: float) -> None:
        self._holder = holder
        self._settle_s = settle_s
        self._ring = Ring()
        self._masters: dict[str, Standing] = {}
        #: Holder -> since when it has been in the set without a gap.
        self._since: dict[str, float] = {}
        #: Chain -> its owner.
        self._owners: dict[str, str | None] = {}
        #: Chain and owner -> until when the chain is not handed over to it.
        self._refused: dict[tuple[str, str], float] = {}

    @property
    def others(self) -> int:
        """Number of other masters that live."""
        return len(self._masters.keys() - {self._holder})

    def update(self, masters: Mapping[str, str], now: float) -> None:
        """Sets the masters that live: holder -> what it stands for."""
        self._masters = {holder: read_standing(text) for holder, text in masters.items()}
        self._since = {holder: self._since.get(holder, now) for holder in masters}
        self._ring.update(masters)
        self._owners.clear()

    def owner(self, chain: str) -> str | None:
        """The master that should lead ``chain``; None: no master that lives stands for it."""
        if chain not in self._owners:
            candidates = self._candidates(chain)
            self._owners[chain] = self._ring.owner(chain, candidates) if candidates else None
        return self._owners[chain]

    def is_mine(self, chain: str) -> bool:
        """Whether this master should lead ``chain``. It should when no master in the set stands for it."""
        return self.owner(chain) in (self._holder, None)

    def successor(self, chain: str, now: float) -> str | None:
        """The master to which this one, which leads ``chain``, hands it over now; None: it keeps it."""
        owner = self.owner(chain)
        if owner is None or owner == self._holder or now - self._since[owner] < self._settle_s:
            return None
        return owner if self._refused.get((chain, owner), 0.0) <= now else None

    def not_taken(self, chain: str, now: float) -> None:
        """The owner of ``chain`` has not taken it in time."""
        owner = self.owner(chain)
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        if owner is not None:
            self._refused[chain, owner] = now + REFUSED_S

    def _candidates(self, chain: str) -> set[str]:
        found = {holder: one for holder, one in self._masters.items() if chain in one.chains}
        ready = {holder: one for holder, one in found.items() if chain not in one.aside} or found
        named = {holder for holder, one in ready.items() if one.named}
        return named or set(ready)
