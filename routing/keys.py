"""Every Redis key of a lane: one function per key, with its type, its members, its lifetime and who deletes it.

All keys of a lane share the hash tag ``{stream}``, so they are in one slot of a cluster. They contain the group's name,
so lanes of one stream never share a key. Lua builds no key names: scripts get them, or their form, from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

#: Keys of one consumer, and their owner.
_OF_CONSUMERS = tuple((kind, "consumer") for kind in ("lease", "held", "queue", "given", "acknowledged", "state"))


@dataclass(frozen=True)
class LaneKeys:
    """Names of the keys of one lane, the pair (stream, consumer group)."""

    stream: str
    group: str

    @cached_property
    def prefix(self) -> str:
        # The group is quoted: a colon in it could otherwise make the keys of two lanes collide. Another program's group
        # need not be UTF-8.
        return f"{{{self.stream}}}:{quote(self.group, safe='@.-_', errors='surrogateescape')}"

    @cached_property
    def leader(self) -> str:
        """String ``<term> <holder>`` with PX: the leader of the lane. Expires; the leader renews or deletes it."""
        return f"{self.prefix}:leader"

    @cached_property
    def term(self) -> str:
        """Integer: the last term given out. Lives as long as the lane; only grows."""
        return f"{self.prefix}:term"

    @cached_property
    def fence(self) -> str:
        """Integer: the last fence given out in the lane. Lives as long as the lane; only grows."""
        return f"{self.prefix}:fence"

    @cached_property
    def tickets(self) -> str:
        """Hash ticket -> record (`bridge.routing.records`): tickets in flight, awaiting a retry, or parked.

        The leader writes and deletes the fields. Bounded by the number of such tickets.
        """
        return f"{self.prefix}:tickets"

    @cached_property
    def applied(self) -> str:
        """Hash ticket -> fence of the last message whose effects were applied.

        Workers write a field with the effects; the leader deletes it with the release of the ticket.
        """
        return f"{self.prefix}:applied"

    @cached_property
    def retries(self) -> str:
        """Sorted set ticket -> due time (Unix ms): tickets awaiting a retry. The leader adds and removes."""
        return f"{self.prefix}:retries"

    @cached_property
    def delayed(self) -> str:
        """Sorted set message (`bridge.routing.ids.member_of`) -> due time (Unix ms): messages that others overtake
        until they are due. Each is pending in the group under `delayed_consumer`.

        The leader adds when it reads them, and removes when they are due. An operator's order changes a due time: it
        counts, and not the field of the entry.
        """
        return f"{self.prefix}:delayed"

    @cached_property
    def late(self) -> str:
        """Sorted set message -> the due time that it had: undone messages that were delayed. It says their places.

        The leader adds in the step that removes from `delayed`, and removes in the step that acknowledges.
        """
        return f"{self.prefix}:late"

    @cached_property
    def holding(self) -> str:
        """Sorted set message -> due time (Unix ms): messages for which their tickets wait, or will wait.

        The leader adds when it reads them, and removes when they are acknowledged.
        """
        return f"{self.prefix}:holding"

    @cached_property
    def outcomes(self) -> str:
        """Stream of outcomes, of notices that consumers come and go, and of operators' orders.

        Workers, their watchers and operators add. The leader trims entries in the step that settles them. Bounded by
        the messages in flight.
        """
        return f"{self.prefix}:outcomes"

    @cached_property
    def consumers(self) -> str:
        """Hash consumer name -> registration (JSON). Consumers write; the leader deletes the fields of lost ones."""
        return f"{self.prefix}:consumers"

    @cached_property
    def dead(self) -> str:
        """Stream of dead letters. The leader adds; only an operator deletes."""
        return f"{self.prefix}:dead"

    @cached_property
    def notices(self) -> str:
        """Hash of the notices about dead letters (`bridge.routing.notices`): up to which letter they were sent, counts,
        and the error of the last request.

        The leader writes it while ``bridge_on_dead_notify`` has a URL. Lives as long as the lane; a fixed set of
        fields.
        """
        return f"{self.prefix}:notices"

    @cached_property
    def counts(self) -> str:
        """Hash counter name -> integer, counted since the lane began (`done`, `failed`, `dead` …). A fixed set of
        fields.
        """
        return f"{self.prefix}:counts"

    @cached_property
    def history(self) -> str:
        """Stream of the results of all deliveries (`bridge.routing.history`). The leader adds, and keeps the newest:
        at least ``bridge_history`` results.
        """
        return f"{self.prefix}:history"

    @cached_property
    def drains(self) -> str:
        """Hash consumer name -> JSON ``{"at_ms", "started"}``: consumers that take no new messages, by an operator's
        order.

        The leader writes, and deletes when the order is lifted, when a new process of the consumer is registered, and
        when none was registered for an hour. An HTTP consumer that leaves deletes its order.
        """
        return f"{self.prefix}:drains"

    @cached_property
    def about(self) -> str:
        """Hash of facts that the lane's members must agree on (`bridge.protocol.agreement`): ``format``, ``app``, and
        ``master``, JSON.

        The first member writes the first two, the leader the first and the last. Lives as long as the lane; a fixed
        set of fields.
        """
        return f"{self.prefix}:about"

    @cached_property
    def known(self) -> str:
        """Hash task -> Unix time in s: tasks that a consumer could run lately. The leader writes the fields, and
        deletes them after a week, when no message waits for the task.
        """
        return f"{self.prefix}:known"

    @cached_property
    def unserved(self) -> str:
        """Hash task -> JSON (`bridge.protocol.unserved`): tasks of waiting messages that no consumer can run.

        The leader writes it again every few seconds while there are any.
        """
        return f"{self.prefix}:unserved"

    @cached_property
    def floor(self) -> str:
        """String, a stream id: all entries up to it are done or dead. The leader updates it every few seconds."""
        return f"{self.prefix}:floor"

    @cached_property
    def agreed(self) -> str:
        """String, an integer: how many times the leader found that the pending list agrees with its picture, while the
        stream has other groups. Leaders of other lanes wait for it before they remove an entry. Each leader makes the
        key at its start: a group without it belongs to another program.
        """
        return f"{self.prefix}:agreed"

    def reply(self, order: str) -> str:
        """List with EX: the leader's answer (JSON) to one operator's order. Expires."""
        return f"{self.prefix}:reply:{order}"

    def parked_consumer(self, master: str, ticket: str) -> str:
        """Not a key: the name in the group under which the messages of a parked ticket are pending."""
        return f"{master}/parked/{ticket}"

    def delayed_consumer(self, master: str) -> str:
        """Not a key: the name in the group under which delayed messages are pending."""
        return f"{master}/delayed"

    def lease(self, incarnation: str) -> str:
        """String (the consumer's name) with PX: the lease of an incarnation, which renews it. Never revived."""
        return f"{self.prefix}:lease:{incarnation}"

    def held(self, incarnation: str) -> str:
        """String (JSON) with PX: the runs that an incarnation reports. Written with each renewal of the lease."""
        return f"{self.prefix}:held:{incarnation}"

    @cached_property
    def state_home(self) -> str:
        """String: the name of the stream under which the states of tickets are kept, where that is not this stream.

        The first leader of a stream with older versions writes it. Lives until the stream is retired.
        """
        return f"{self.prefix}:state-home"

    def state(self, ticket: str) -> str:
        """Hash name -> value (JSON): the state of one ticket (`bridge.app.state`), of the subscription ``group``.

        ``stream`` is the whole stream, not a partition, and of the oldest version there was. Workers write it with the
        success of a message. Lives until it is empty, its time to live is over, or somebody deletes it, as ``bridge
        subscription remove`` does.
        """
        return f"{self.prefix}:state:{ticket}"

    def queue(self, consumer: str) -> str:
        """List: the Celery queue of one consumer. The leader pushes, the worker pops; a new registration deletes it."""
        return f"{self.prefix}:queue:{consumer}"

    def given(self, incarnation: str) -> str:
        """Hash with PX, fence -> ``<message id> <given at, Unix us> <bytes of the ticket> <ticket><Celery message>``:
        what an HTTP consumer was given and has not acknowledged.

        ``next`` adds, ``acknowledge`` deletes. It lives as long as the lease. Bounded by the consumer's concurrency.
        """
        return f"{self.prefix}:given:{incarnation}"

    def acknowledged(self, incarnation: str) -> str:
        """Sorted set with PX, ``<message id> <fence> <kind>`` -> Unix time in us: the messages that an HTTP consumer
        has acknowledged last, so that a call that is repeated gets the same answer. It lives as long as the lease.
        Bounded.
        """
        return f"{self.prefix}:acknowledged:{incarnation}"

    def dispatched(self) -> str:
        """Not a key: the channel on which the leader names HTTP consumers that it has just sent something."""
        return f"{self.prefix}:dispatched"

    def owner_of(self, key: str) -> str | None:
        """The owner of ``key``, for the check that each key has one; None when it is not a key of this lane.

        An owner is not always the only writer. Workers also write `applied`, `consumers` and `outcomes`, watchers and
        operators also write `outcomes`, and the leader adds to `dead`.
        """
        fixed = {
            self.stream: "producers",
            self.leader: "leader",
            self.term: "leader",
            self.fence: "leader",
            self.tickets: "leader",
            self.applied: "leader",
            self.retries: "leader",
            self.delayed: "leader",
            self.late: "leader",
            self.holding: "leader",
            self.outcomes: "leader",
            self.consumers: "leader",
            self.dead: "operator",
            self.counts: "leader",
            self.notices: "leader",
            self.history: "leader",
            self.drains: "leader",
            self.floor: "leader",
            self.agreed: "leader",
            self.state_home: "consumer",
            self.about: "leader",
            self.known: "leader",
            self.unserved: "leader",
            follows_key(self.stream): "leader",
            newer_key(self.stream): "leader",
            schedule_key(self.stream): "leader",
        }
        if key in fixed:
            return fixed[key]
        for kind, owner in (*_OF_CONSUMERS, ("reply", "leader")):
            if key.startswith(f"{self.prefix}:{kind}:"):
                return owner
        return None


def layout_key(stream: str) -> str:
    """String (JSON ``{"partitions", "generation", "since_ms"}``): how ``stream`` is split into partitions.

    The first member or producer of a split stream writes it, and ``bridge stream repartition``. Then it also has
    ``older``, the layout whose partitions are followed, or ``leaving``, the one whose partitions are being left. It
    lives as long as the stream: masters write it again when it is lost. A stream that was never split has none.
    ``bridge stream retire`` leaves ``{"retired_ms", "newest", "was"}`` here, so that pushes to the stream are refused.
    It stays until ``bridge stream retire --undo``.
    """
    return f"{_tagged(stream)}/layout"


def layout_copy_key(stream: str) -> str:
    """String: the copy of a layout that is not the first one of ``stream``. A lost layout is found again by it.

    Written in one step with the layout. It lives as long as the stream: ``bridge stream retire`` deletes it.
    """
    return f"{layout_key(stream)}:copy"


# Keys of the masters of a stream. They belong to no lane, because live masters share the lanes. No key of a lane can be
# equal to one of them: its hash tag is followed by a colon.


def masters(stream: str) -> str:
    """Sorted set with PX, master -> when it counts as gone (Unix ms): the masters that live, if the app has several
    lanes.

    Each master adds itself, and renews its place with its leads. One that stops deletes its place; the others delete
    one that ended.
    """
    return f"{_tagged(stream)}/masters"


def masters_stand(stream: str) -> str:
    """Hash with PX, master -> ``<ms> <JSON>``: how long its place lasts, and the chains that it stands for
    (`bridge.protocol.standing`). The field with an empty name changes with each change.

    Written and deleted with the master's place in the sorted set.
    """
    return f"{_tagged(stream)}/masters:stand"


def follows_key(stream: str) -> str:
    """String (JSON list): the older versions of ``stream``, oldest first. The leader of one of its lanes writes it, and
    ``bridge stream retire`` takes a stream out of it.
    """
    return f"{_tagged(stream)}/follows"


def newer_key(stream: str) -> str:
    """Set: the newer versions of ``stream``. The leaders of their lanes add, ``bridge stream retire`` removes."""
    return f"{_tagged(stream)}/newer"


def retired_key(stream: str) -> str:
    """Hash, retired older version of ``stream`` -> Unix ms. ``bridge stream retire`` writes the fields, and ``--undo``
    deletes them.
    """
    return f"{_tagged(stream)}/retired"


def schedule_key(stream: str) -> str:
    """Hash ``<app>/<entry>`` -> ``<Unix ms> <times>``: the last tick of each entry of ``bridge_schedule``; of one that
    has not ticked, when a leader saw it first.

    The leader that pushes the ticks writes the fields, and deletes those of entries that the app does not have any
    more. ``bridge stream retire`` deletes the hash.
    """
    return f"{_tagged(stream)}/schedule"


# Keys of writes from Spark, and of pushes with an idempotency key. They belong to a stream and not to a lane, because a
# producer knows no group. No key of a lane can be equal to one of them: its hash tag is followed by a colon.


def push_prefix(stream: str) -> str:
    """Not a key: the beginning of the keys below. In the stream's slot, even when its name has a hash tag."""
    return f"{_tagged(stream)}/push"


def _tagged(stream: str) -> str:
    tag_opens = stream.find("{")
    has_tag = tag_opens >= 0 and stream.find("}", tag_opens + 1) > tag_opens + 1
    return stream if has_tag else f"{{{stream}}}"


def push_guard(prefix: str, run: str) -> str:
    """Hash with EX, of one write from Spark: the progress of each of its partitions. ``RUN`` is the name of the write:
    the ``runId`` of a batch, or the id of a streaming query.

    ``<epoch>/<partition>`` -> ``<rows> <digest>[ end]``, ``<epoch>/of`` -> partitions of the epoch, ``floor`` -> the
    last committed epoch, ``told`` -> its summary (JSON), ``began`` -> when a replay of messages that expire began (ms).
    Each chunk sets the expiry again. A commit deletes the fields of older epochs.
    """
    return f"{prefix}:run:{quote(run, safe='@.-_')}"


def push_once(stream: str, idempotency_key: str) -> str:
    """Hash with EX, of one push: number of the first message of a part -> ``<digest> <id> <id> …``. Expires."""
    return f"{push_prefix(stream)}:once:{quote(idempotency_key, safe='@.-_')}"


def push_tickets(prefix: str, which: int) -> str:
    """Hash with EX, ticket -> last sequence number, and "" -> ``<began, Unix s> <life, s>``: tickets that were written
    to. There are two, 0 and 1, and one of them is written to. At the end of its life it is left to expire, and the
    other one begins.
    """
    return f"{prefix}:tickets:{which}"


def http_consumer(stream: str, incarnation: str) -> str:
    """String (JSON) with PX: an incarnation of an HTTP consumer: its name, its lanes and its concurrency
    (`bridge.http.incarnations`). Registration writes a copy for each version of the stream, and a heartbeat renews
    them. They outlive the leases for an hour.
    """
    return f"{_tagged(stream)}/http:{incarnation}"


def push_waiting(stream: str) -> str:
    """Hash with EX, writer -> ``<noted at, Unix ms> <waiting for, ms> <why>``: writes that wait. Expires."""
    return f"{push_prefix(stream)}:waiting"
