"""What a master stands for, as a value of the hash `bridge.routing.keys.masters_stand`.

| name | means |
|---|---|
| ``lanes`` | the chains (`bridge.app.lanes.AppLane.chain`) that it stands for, sorted |
| ``named`` | whether an operator named them (``bridge run --lanes``) |
| ``aside`` | those of them that it leaves to others for a while, after a defect |
"""

from __future__ import annotations

from typing import NamedTuple

import orjson


class Standing(NamedTuple):
    """What one master stands for."""

    chains: frozenset[str] = frozenset()
    named: bool = False
    aside: frozenset[str] = frozenset()

    def text(self) -> str:
        """The value for the hash."""
        fields = {"lanes": sorted(self.chains), "named": self.named, "aside": sorted(self.aside)}
        return orjson.dumps(fields).decode()


def read_standing(text: str) -> Standing:
    """What ``text`` says. Nothing, when this version cannot read it: no lane waits for such a master then."""
    try:
        fields = orjson.loads(text)
        return Standing(frozenset(fields["lanes"]), bool(fields["named"]), frozenset(fields["aside"]))
    except (ValueError, TypeError, LookupError):
        return Standing()
