"""How long a failed message waits before it comes again: ``bridge_backoff``."""

from __future__ import annotations

import random

from pydantic import BaseModel, ConfigDict, Field


class Backoff(BaseModel):
    """Exponential backoff with jitter: attempt n waits ``base * factor**(n-1)``, at most ``limit`` seconds, of which a
    random part of up to ``jitter`` (a share; 0.5 is equal jitter) is taken off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    base: float = Field(default=1.0, ge=0, le=86_400, description="Seconds after the first failed attempt.")
    factor: float = Field(default=2.0, ge=1, le=100, description="By how much each wait is longer than the last one.")
    limit: float = Field(default=300.0, ge=0, le=7 * 86_400, description="Seconds that a wait has at most.")
    jitter: float = Field(default=0.5, ge=0, le=1, description="Share of a wait of which a random part is taken off.")

    def delay_ms(self, attempt: int, share: float | None = None) -> int:
        """How long to wait, in ms, after failed ``attempt`` (1, 2, …). ``share``: a number in [0, 1) in place of a
        random one.
        """
        if share is None:
            share = random.random()
        # The exponent is bounded: 2.0 ** 2000 overflows, and the limit was passed long before.
        delay = min(self.limit, self.base * self.factor ** min(attempt - 1, 64))
        return int(1000 * delay * (1 - self.jitter * share))
