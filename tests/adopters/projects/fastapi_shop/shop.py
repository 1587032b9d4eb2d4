"""FastAPI pushes from its event loop; Celery works."""

import os
from contextlib import asynccontextmanager

from celery import Celery
from fastapi import FastAPI

import bridge

celery_app = Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
bridge.install(celery_app)


@celery_app.task(bind=True)
def book(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["line"])
    return payload["line"]


@asynccontextmanager
async def lifespan(_):
    yield
    await celery_app.bridge.aclose()


web = FastAPI(lifespan=lifespan)


@web.post("/orders/{order}")
async def place(order: str, lines: list[str]) -> list[str]:
    first = await book.apush(order, {"line": lines[0]})
    return [first, *await book.apush_many((order, {"line": line}) for line in lines[1:])]
