"""Flask and Celery as Flask's pages show it, and the bridge."""

import os
import time

from celery import Celery, Task, shared_task
from flask import Flask, current_app, request

import bridge


def celery_init_app(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    bridge.install(celery_app)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def undo(self, lost, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", f"{current_app.config['SHOP']} undoes")


@shared_task(bind=True, ignore_result=True, bridge_rollback=undo, time_limit=2)
def book(self, ticket_id, payload):
    if payload == "slow" and self.ticket.attempt == 1:
        time.sleep(60)  # the time limit cuts the first attempt off
    self.ticket.effects.rpush(f"log:{ticket_id}", f"{current_app.config['SHOP']} {payload}")


def create_app() -> Flask:
    app = Flask("shop")
    app.config.from_mapping(
        SHOP="corner shop",
        CELERY={"broker_url": os.environ["REDIS_URL"], "task_ignore_result": True, "bridge_backoff": {"base": 0.1}},
    )
    celery_init_app(app)

    @app.post("/orders/<order>")
    def place(order: str):
        return {"id": book.push(order, request.get_json())}

    return app


flask_app = create_app()
celery_app = flask_app.extensions["celery"]
