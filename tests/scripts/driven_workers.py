"""Workers that drive the real scripts, beside the reference that says what must result."""

from __future__ import annotations

from typing import Any

import orjson

from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.effects import Effect, Success, apply
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import died, goodbye, register
from bridge.routing.return_codes import ReturnCode
from tests.scripts.lane_reference import Consumer, Execution, Reference
from tests.scripts.world import LEASE_MS, Client, text


class DrivenWorkers:
    """The workers of a lane on a real server. A worker is careless: it runs whatever it popped, and tells of it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = LaneKeys("ticket_stream", "bridge")
        self.reference = Reference()
        self.consumers: dict[str, Consumer] = {}
        self.executions: list[Execution] = []
        self._lives = 0

    def join(self, name: str) -> ReturnCode:
        """A new incarnation of ``name``, if the server lets it begin."""
        old = self.consumers.get(name)
        self._lives += 1
        incarnation = f"life-{self._lives}"
        registration = orjson.dumps({"incarnation": incarnation, "slots": 1, "queue": self.keys.queue(name)})
        registered = self.client.hget(self.keys.consumers, name)
        found = (registered, orjson.loads(registered)["incarnation"]) if registered else None
        code, _ = register(self.client, self.keys, name, incarnation, LEASE_MS, registration, found)
        expected = ReturnCode.HELD if registered and old is not None and old.alive else ReturnCode.OK
        assert code is expected
        if code is ReturnCode.OK:
            self.consumers[name] = Consumer(name, incarnation, registration)
            self.reference.queues.pop(name, None)
            self._told_last()
        return code

    def ends(self, name: str, how: str) -> None:
        """The lease of a consumer ends: by its time, by a good-bye, or by a death notice."""
        consumer = self.consumers[name]
        if how == "expires":
            self.client.delete(self.keys.lease(consumer.incarnation))
        elif how == "says good-bye":
            goodbye(self.client, self.keys, name, consumer.incarnation)
            self._told_last()
        else:
            code = died(self.client, self.keys, name, consumer.incarnation, [1, 2])
            assert code is (ReturnCode.OK if consumer.alive else ReturnCode.LATE)
            if code is ReturnCode.OK:
                self._told_last()
        consumer.alive = False

    def pop(self, name: str) -> None:
        """The worker pops the oldest Celery message."""
        queue = self.reference.queues[name]
        raw: Any = self.client.rpop(self.keys.queue(name))
        assert text(raw) == queue.pop(0)
        headers = orjson.loads(raw)["headers"]
        ticket, offset, ids, incarnation = headers["run"]
        self.executions.append(Execution(ticket, ids, headers["bridge_fence"] + offset, name, incarnation))

    def present(self) -> list[Execution]:
        """What runs at a consumer that holds its lease."""
        lives = {consumer.incarnation for consumer in self.consumers.values() if consumer.alive}
        return [execution for execution in self.executions if execution.incarnation in lives and not execution.over]

    def overtaken(self) -> list[Execution]:
        """What runs under a fence that is not the current one."""
        return [execution for execution in self.executions if not execution.over and not self._is_current(execution)]

    def in_time(self) -> list[Execution]:
        """What runs under the current fence."""
        return [execution for execution in self.executions if not execution.over and self._is_current(execution)]

    def outcome(self, execution: Execution, kind: Kind) -> None:
        """A worker writes a plain outcome, whether its fence is the current one or not."""
        id_, fence = execution.current
        if kind is Kind.DONE and self._is_current(execution):
            self.reference.won.add(id_)
        data = b"[%b]" % Outcome(id_, fence, kind, started_us=1, error="no").encode()
        self.client.xadd(self.keys.outcomes, {"i": execution.incarnation, "o": data})
        self._told_last()
        execution.at = execution.at + 1 if kind is Kind.DONE else len(execution.ids)

    def succeed(self, execution: Execution, *, twice: bool) -> ReturnCode:
        """A worker hands effects over with its success; ``twice``: the reply was lost, and it does so again."""
        ref = self.reference
        id_, fence = execution.current
        ticket = execution.ticket
        current = self._is_current(execution) and fence > ref.applied.get(ticket, 0)
        again = self._is_current(execution) and fence == ref.applied.get(ticket, 0)
        effect = Effect("list", "", ("RPUSH", f"user:{ticket}", id_))
        data = Outcome(id_, fence, Kind.DONE).encode().decode()
        success = Success(ticket, fence, data, (effect,))
        codes = [code for code, _ in apply(self.client, self.keys, execution.incarnation, [success])]
        assert codes == [ReturnCode.OK if current else ReturnCode.AGAIN if again else ReturnCode.STALE]
        if current:
            assert id_ not in ref.effects.get(ticket, []), f"promise 4: the effects of {id_} were applied twice"
            ref.effects.setdefault(ticket, []).append(id_)
            ref.applied[ticket] = fence
            ref.won.add(id_)
            self._told_last()
            if twice:
                [(code, _)] = apply(self.client, self.keys, execution.incarnation, [success])
                assert code is ReturnCode.AGAIN
        execution.at += 1
        return codes[0]

    def _is_current(self, execution: Execution) -> bool:
        record = self.reference.record(execution.ticket)
        _, fence = execution.current
        return record is not None and record.fence > 0 and record.fence <= fence < record.fence + len(record.ids)

    def _told_last(self) -> None:
        """Notes the entry that was just added to the outcome stream."""
        [(id_, _)] = self.client.xrevrange(self.keys.outcomes, count=1)
        self.reference.outcomes.append(text(id_))
