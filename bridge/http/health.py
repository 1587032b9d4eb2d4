"""``GET /api/health``: whether this master can take calls. For a load balancer, without a token."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from redis.exceptions import RedisError

from bridge.http.problems import documented, unavailable
from bridge.http.site import SiteOf

# A load balancer may add parameters of its own: they are ignored.
router = APIRouter(tags=["health"])

#: Longest time for Redis to answer, in seconds.
ANSWER_S = 1.0


class Health(BaseModel):
    """The answer of a master that can take calls."""

    status: Literal["ok"] = Field(default="ok", description="Always ok. Otherwise the status of the answer is 503.")
    redis_ms: float = Field(description="How long Redis took to answer, in ms.")


@router.get("/api/health", summary="Whether this master can take calls", responses=documented())
async def health(site: SiteOf) -> Health:
    """Answers 200 while Redis answers, and 503 while it does not or while this master stops."""
    if site.stopping.is_set():
        raise unavailable("this master stops; use another one")
    began = time.monotonic()
    try:
        redis = await site.redis()
        await asyncio.wait_for(redis.ping(), ANSWER_S)
    except (RedisError, OSError, TimeoutError):
        raise unavailable("Redis is away; try again when it is back") from None
    return Health(redis_ms=round((time.monotonic() - began) * 1000, 3))
