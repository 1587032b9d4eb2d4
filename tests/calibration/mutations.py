"""The mutations. Their texts are as short as possible and occur once, so that most changes of the product leave them
valid.
"""

from __future__ import annotations

from tests.calibration.mutation import Edit, Mutation

ADVANCE = "routing/lua/advance.lua"
APPLY = "routing/lua/apply.lua"
HELD_BACK = "bridge/leader/stream/held_back.py"
READ = "routing/lua/read.lua"
REGISTER = "routing/lua/register.lua"
REMOVE = "routing/lua/remove.lua"
REROUTE = "routing/lua/reroute.lua"
LEASES = "bridge/leader/consumers/leases.py"
RECOVERY = "bridge/leader/consumers/lease_watch.py"
CHAIN = "bridge/leader/picture/chain.py"
PUSHER = "bridge/producer/pusher.py"
READY = "bridge/leader/picture/ready.py"
LANE = "bridge/leader/picture/lane.py"
RECORDS = "bridge/leader/picture/ticket_records.py"
SETTLING = "bridge/leader/picture/settling.py"
BATCH = "routing/batch.py"
TRANSITIONS = "routing/transitions.py"
ROUND_WRITE = "bridge/worker/pool/round_write.py"
CONTEXT = "bridge/app/context.py"

#: How a leader's script asks who leads, and stops.
_LEADS = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then"
#: A read does not compare how far the group has read: the second guard against one that comes late.
_READ_ON = Edit(READ, "if ARGV[5] ~= '' then", "if false then")

#: The state of a ticket is written by commands of its own.
_SAVED = (
    "{indent}for effect in {context}._state_changes.effects if {context}._state_changes else ():\n"
    "{indent}    __import__('redis').Redis.from_url(__import__('os').environ['CELERY_BROKER_URL']).execute_command(\n"
    "{indent}        *effect.arguments\n"
    "{indent}    )\n"
)
_NOT_AMONG_THE_EFFECTS = Edit(
    CONTEXT,
    "return effects if self._state_changes is None else (*effects, *self._state_changes.effects)",
    "return effects",
)

MUTATIONS = [
    # -- I1: every entry is in exactly one state -------------------------------------------------------------------
    Mutation(
        "the rest of a failed run is not put back",
        "I1",
        "steady",
        ("look: state",),
        (Edit(SETTLING, "        batch.given_back += [message.id for message in ticket.run]\n", ""),),
        long=True,
    ),
    Mutation(
        "the record of a retry is not written",
        "I1",
        "killed between attempts",
        ("ledger: attempts", "audit: attempts"),
        (
            Edit(
                RECORDS,
                "                batch.records += (ticket.id, ticket.record)\n                batch.retries +=",
                "                ticket.record = ''\n                batch.released.append(ticket.id)\n"
                "                batch.retries +=",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a dead message is not acknowledged",
        "I1",
        "steady",
        ("ledger: left over", "audit: disagreeing"),
        (
            Edit(
                SETTLING,
                "        batch.acknowledged.append(message.id)\n        if not message.payload:",
                "        if not message.payload:",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a refusal without a charge is charged",
        "I1",
        "refusals",
        ("audit: attempts",),
        (Edit(SETTLING, "        ticket.nacked += 1\n", "        ticket.nacked += 1\n        ticket.attempt += 1\n"),),
    ),
    Mutation(
        "a dropped message is not acknowledged",
        "I1",
        "refusals",
        ("ledger: left over",),
        (
            Edit(
                SETTLING,
                "        batch.acknowledged.append(message.id)\n        dropped =",
                "        batch.acknowledged += [message.id] if outcome.kind is Kind.DONE else []\n        dropped =",
            ),
        ),
        long=True,
    ),
    Mutation(
        "the effects of a dropped message are applied",
        "promise 4",
        "refusals",
        ("ledger: applied twice",),
        (
            Edit(
                "bridge/worker/pool/execute.py",
                "            if context.dropped is not None and not context.written:",
                "            if False:",
            ),
        ),
        long=True,
    ),
    Mutation(
        "an expired message is run",
        "I1",
        "refusals",
        ("ledger: expired",),
        (
            Edit("bridge/leader/picture/planner.py", "head.options.has_expired(at_ms)", "False"),
            Edit("bridge/worker/pool/execute.py", "self.shared.server_ms >= own.expires_ms", "False"),
        ),
        long=True,
    ),
    Mutation(
        "a priority counts within a ticket",
        "I2",
        "refusals",
        ("ledger: reordered",),
        (
            Edit(
                "bridge/leader/picture/window.py",
                "        ticket.own_waiting().append(message)\n",
                "        priority = message.options.priority if message.options else 0\n"
                "        (ticket.own_waiting().appendleft if priority > 5 else ticket.own_waiting().append)(message)\n",
            ),
        ),
    ),
    Mutation(
        "a delayed message goes out before it is due",
        "promise 1",
        "delayed",
        ("ledger: early", "audit: early"),
        (Edit(LANE, "        if options.due_ms < self.late_before_ms:\n", "        if True:\n"),),
    ),
    Mutation(
        "a message that is due goes before those that were added until then",
        "promise 1",
        "delayed",
        ("ledger: reordered", "audit: reordered"),
        (Edit(LANE, "while at > first and ticket.waiting[at - 1].place > place:", "while at > first:"),),
        long=True,
    ),
    Mutation(
        "a ticket does not wait for a message that is held",
        "promise 1",
        "delayed",
        ("ledger: early",),
        (Edit(READY, "        if ticket.begun or due_ms <= self.clock.due_ms():\n", "        if True:\n"),),
        long=True,
    ),
    # -- I2: at most one run of a ticket is in flight, and each message begins after the success before ------------
    Mutation(
        "the outcomes of a bundle are written at its end",
        "I2",
        "steady",
        ("ledger: started too early",),
        (
            Edit(
                "bridge/worker/pool/bundles.py",
                "                and writes.may_begin\n",
                "                and False\n",
            ),
            Edit("bridge/worker/pool/bundles.py", "        if pending:\n", "        if pending and not going_on:\n"),
        ),
        long=True,
    ),
    Mutation(
        "a message starts while the write of the one before it is under way",
        "I2",
        "steady",
        ("ledger: started too early",),
        (
            Edit(
                "bridge/worker/pool/bundles.py",
                "            if delivery.ticket in writes.tickets:\n",
                "            if 0:\n",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a ticket goes on after its effects were refused",
        "I2",
        "steady",
        ("ledger: started too early",),
        (Edit("bridge/worker/pool/write_behind.py", "                    self.refused.add(one.ticket)\n", ""),),
    ),
    Mutation(
        "a ticket with a run in flight is ready for the next",
        "I2",
        "steady",
        ("look: state",),
        (
            Edit(READY, "if ticket.queued or ticket.run or ticket.due_ms", "if ticket.queued or ticket.due_ms"),
            Edit(ADVANCE, "if (found[k - i + 1] or '') ~=", "if false and (found[k - i + 1] or '') ~="),
        ),
        long=True,
    ),
    Mutation(
        "a Celery message that came twice runs twice",
        "I2",
        "doubled",
        ("ledger: fence", "ledger: overlap"),
        (Edit("bridge/consumer/holdings.py", "if first <= self._newest.get(ticket, 0):", "if False:"),),
        long=True,
    ),
    Mutation(
        "a message of a newer version goes first",
        "I2",
        "two versions",
        ("ledger: an older version was overtaken",),
        (Edit(CHAIN, "if lane is not None and (ticket in lane.tickets", "if False and (ticket in lane.tickets"),),
    ),
    Mutation(
        "a message of an older version runs beside a newer one",
        "I2",
        "two versions",
        ("ledger: overlap",),
        (
            Edit(CHAIN, "is not None and there.run:", "is not None and False:"),
            Edit(ADVANCE, "if found[k - i] and string.find(found[k - i], '^%[[1-9]') then", "if false then"),
        ),
        long=True,
    ),
    # -- I3: an acknowledgement follows a recorded outcome, in one step with the release ---------------------------
    Mutation(
        "a message is acknowledged at its dispatch",
        "I3",
        "steady",
        ("look: acknowledged early", "look: state"),
        (
            Edit(
                ADVANCE,
                "    claim(ARGV[to + 1], id, ids)\n",
                "    claim(ARGV[to + 1], id, ids)\n    call_chunked({'XACK', KEYS[6], group}, id, ids)\n",
            ),
        ),
    ),
    Mutation(
        "a message is never acknowledged",
        "I3",
        "steady",
        ("ledger: left over", "audit: disagreeing"),
        (Edit(ADVANCE, "acked = call_chunked({'XACK', KEYS[6], group}", "acked = call_chunked({'XACK', KEYS[6], ''}"),),
        long=True,
    ),
    Mutation(
        "a message is acknowledged in a step of its own",
        "I3",
        "steady",
        ("look: state", "writes: outside a script"),
        (
            Edit(BATCH, '1, "acknowledged")', '1, "acknowledged", lambda batch: [])'),
            Edit(
                TRANSITIONS,
                "    reply = _ADVANCE.run(client, names, args)\n    code = code_for_leader(reply[0], keys)\n",
                "    reply = _ADVANCE.run(client, names, args)\n    code = code_for_leader(reply[0], keys)\n"
                "    if batch.acknowledged:\n        client.xack(keys.stream, keys.group, *batch.acknowledged)\n",
            ),
        ),
        long=True,
    ),
    # -- I4: fences only grow, and a stale one changes nothing -----------------------------------------------------
    Mutation(
        "effects are applied under any fence",
        "I4",
        "frozen solo",
        ("ledger: applied twice", "ledger: stale effect"),
        (Edit(APPLY, "local current = base > 0 and", "local current = true or"),),
    ),
    Mutation(
        "an outcome counts under any fence",
        "I4",
        "frozen solo fails",
        ("audit: overlapped",),
        (Edit(SETTLING, "ticket is None or ticket.fence != outcome.fence or", "ticket is None or"),),
        long=True,
    ),
    Mutation(
        "a state is saved without its fence",
        "I4",
        "frozen solo",
        ("ledger: state",),
        (
            Edit(
                ROUND_WRITE,
                "        for (context, outcome, _), (code, problem) in zip(",
                "        for context, _, _ in self._with_effects:\n"
                + _SAVED.format(indent=" " * 12, context="context")
                + "        for (context, outcome, _), (code, problem) in zip(",
            ),
            _NOT_AMONG_THE_EFFECTS,
        ),
        long=True,
    ),
    # -- I5: a ticket moves only after the lease is over, and the worker stops before ------------------------------
    Mutation(
        "tickets move without a look at the lease",
        "I5",
        "long tasks",
        ("ledger: overlap",),
        (
            Edit(RECOVERY, "expired = set() if spared else self._leases.over(left)", "expired = set(left)"),
            # Only of those that have tickets: who has none would be gone before it gets one.
            Edit(
                RECOVERY, "for i, ms in left.items() if ms <= 0]", "for i in left if self._lane.consumers[i].tickets]"
            ),
            Edit(REROUTE, "if redis.call('EXISTS', KEYS[6]) == 1 then", "if false then"),
        ),
    ),
    Mutation(
        "a pool process works on past its lease",
        "I5",
        "frozen main process",
        ("ledger: overlap",),
        (
            Edit(
                "bridge/worker/guard/shared_page.py",
                "ended = now_ns() >= self._numbers[_DEADLINE]\n",
                "return []\n        ended = 0\n",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a lease that ended is revived",
        "I5",
        "steady",
        ("writes: outside a script",),
        (
            Edit(
                "bridge/consumer/lease.py",
                "pipe.pexpire(keys.lease(incarnation), lease_ms)",
                "pipe.set(keys.lease(incarnation), self._name, px=lease_ms)",
            ),
        ),
        long=True,
    ),
    # -- I5a: no single clock decides ------------------------------------------------------------------------------
    Mutation(
        "a lease counts as over although the server's clock was set",
        "I5a",
        "clock set",
        ("ledger: overlap",),
        (Edit(LEASES, "        return now - missed >= wait_ms / 1000\n", "        return True\n"),),
    ),
    # -- I6: the leader holds nothing that it cannot rebuild -------------------------------------------------------
    Mutation(
        "attempts are counted in memory only",
        "I6",
        "killed between attempts",
        ("ledger: attempts", "audit: attempts"),
        (
            Edit(
                RECORDS,
                'tail = records.tail("", "", ticket.attempt, [front], self.clock.server_ms(), *why)',
                'tail = records.tail("", "", 1, [front], self.clock.server_ms(), *why)',
            ),
        ),
        long=True,
    ),
    Mutation(
        "waiting messages are unknown to the next leader",
        "I6",
        "late dispatch",
        ("ledger: lost", "scenario: stuck"),
        (Edit("bridge/leader/takeover/rebuild.py", "in self._mended():", "in ():"),),
    ),
    Mutation(
        "parked tickets are in the leader's memory only",
        "I6",
        "parked",
        ("scenario: a parked ticket ran",),
        (
            Edit(
                RECORDS,
                "        ticket.record = records.record(records.PARKED, tail)\n"
                "        batch.records += (ticket.id, ticket.record)\n",
                '        ticket.record = ""\n',
            ),
        ),
        long=True,
    ),
    # -- I7: deciding, claiming, recording and pushing are one step ------------------------------------------------
    Mutation(
        "a message is dispatched without a claim",
        "I7",
        "steady",
        ("look: state",),
        (Edit(ADVANCE, "    claim(ARGV[to + 1], id, ids)\n", ""),),
    ),
    Mutation(
        "a message is pushed to the queue after the script",
        "I7",
        "steady",
        ("writes: outside a script",),
        (
            Edit(ADVANCE, "redis.call('LPUSH', KEYS[15 + d], opening .. ARGV[i])", ""),
            Edit(
                TRANSITIONS,
                "    return Advanced(int(reply[1]),",
                "    for to in batch.dispatches.values():\n        for text in to.texts:\n"
                "            opened = opening.encode() if isinstance(opening, str) else bytes(opening)\n"
                "            client.lpush(to.queue, opened + reply[1] + text)\n"
                "    return Advanced(int(reply[1]),",
            ),
        ),
        long=True,
    ),
    # -- I8: whatever a master writes, it writes as leader ---------------------------------------------------------
    Mutation(
        "a batch does not ask who leads",
        "I8",
        "steady",
        ("writes: did not ask who leads",),
        (Edit(ADVANCE, _LEADS, "if false then"),),
        long=True,
    ),
    Mutation(
        "a batch asks who leads and ignores the answer",
        "I8",
        "late dispatch",
        ("ledger: applied twice",),
        (Edit(ADVANCE, _LEADS, "if redis.call('GET', KEYS[1]) == '' then"),),
    ),
    Mutation(
        "a read asks who leads and ignores the answer",
        "I8",
        "late read",
        ("ledger: started too early",),
        (Edit(READ, _LEADS, "if redis.call('GET', KEYS[1]) == '' then"), _READ_ON),
        long=True,
    ),
    Mutation(
        "a lane that is read again has no new term",
        "I8",
        "late read of its own",
        ("ledger: started too early",),
        (Edit("bridge/master/election.py", "if self._taken:", "if False:"), _READ_ON),
        long=True,
    ),
    Mutation(
        "a lane has two leaders",
        "I8",
        "two masters",
        ("look: state",),
        (Edit("routing/lua/lead.lua", "return {'FOLLOW', current, left}", "return {'ELECTED', current}"),),
        long=True,
    ),
    Mutation(
        "a lane has two leaders when it goes to its owner",
        "I8",
        "shared lanes",
        ("look: state",),
        (Edit("routing/lua/lead.lua", "return {'FOLLOW', current, left}", "return {'ELECTED', current}"),),
        long=True,
    ),
    # -- I9: no key without bound or owner -------------------------------------------------------------------------
    Mutation(
        "marks of applied effects stay",
        "I9",
        "steady",
        ("ledger: left over",),
        (Edit(ADVANCE, "call_chunked({'HDEL', KEYS[3]}, first", "call_chunked({'HMGET', KEYS[3]}, first"),),
    ),
    Mutation(
        "settled outcomes stay",
        "I9",
        "steady",
        ("ledger: left over",),
        (Edit(ADVANCE, "redis.call('XTRIM', KEYS[5], 'MINID', keep)", ""),),
        long=True,
    ),
    Mutation(
        "a lease without an end",
        "I9",
        "steady",
        ("look: endless",),
        (Edit(REGISTER, "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])", "redis.call('SET', KEYS[2], ARGV[1])"),),
        long=True,
    ),
    Mutation(
        "the answer to an order stays",
        "I9",
        "steady",
        ("look: endless",),
        (Edit("bridge/leader/duties/operator_orders.py", "                    pipe.expire(key, ANSWER_KEPT_S)\n", ""),),
        long=True,
    ),
    # -- promise 4: effects are applied in one step with the success, or not at all --------------------------------
    Mutation(
        "effects of a failure are applied",
        "promise 4",
        "steady",
        ("ledger: unexplained", "ledger: applied twice"),
        (
            Edit(
                ROUND_WRITE,
                "if outcome.kind is Kind.DONE and context is not None:",
                "if context is not None:",
            ),
        ),
    ),
    Mutation(
        "a body that failed without Celery's tracer counts as a success",
        "promise 4",
        "steady",
        ("ledger: unexplained",),
        (Edit("bridge/worker/pool/light_tracer.py", "body_end = (exc, None)", "body_end = (None, None)"),),
        long=True,
    ),
    Mutation(
        "a state is saved before the outcome",
        "promise 4",
        "steady",
        ("ledger: state",),
        (
            Edit(
                CONTEXT,
                "default_ttl_s=self.lane.state_ttl\n            )\n",
                "default_ttl_s=self.lane.state_ttl\n            )\n" + _SAVED.format(indent=" " * 12, context="self"),
            ),
        ),
    ),
    Mutation(
        "a state is not among the effects",
        "promise 4",
        "steady",
        ("ledger: state",),
        (_NOT_AMONG_THE_EFFECTS,),
        long=True,
    ),
    Mutation(
        "the next message of a bundle gets the state before the last one",
        "promise 4",
        "steady",
        ("ledger: state",),
        (
            Edit(
                "bridge/worker/pool/bundles.py",
                "deliveries[position + 1].state = delivery.context.saved_state",
                "deliveries[position + 1].state = delivery.state",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a change deep inside a state is not noticed",
        "promise 4",
        "steady",
        ("ledger: state",),
        (
            Edit(
                "bridge/app/state.py",
                "if known is not None and (known == text or",
                "if known is not None and (isinstance(value, dict) or known == text or",
            ),
        ),
        long=True,
    ),
    # -- promise 1, for each partition: a ticket has one ---------------------------------------------------------------
    Mutation(
        "a push goes to the wrong partition",
        "promise 1",
        "two partitions",
        ("ledger: dead", "ledger: lost"),
        (Edit(PUSHER, "[crc32(row.ticket) for row in batch]", "[0] * len(batch)"),),
        long=True,
    ),
    Mutation(
        "a new partition does not wait for the old ones",
        "promise 1",
        "repartitioned",
        ("ledger: an older version was overtaken",),
        (
            Edit(
                "bridge/app/lanes.py",
                "before = _partitions(newest.settings, layout.older, layout.older_of(number))",
                "pass",
            ),
        ),
        long=True,
    ),
    Mutation(
        "a message in the wrong partition is handled",
        "promise 1",
        "two partitions",
        ("ledger: counts",),
        (
            Edit(PUSHER, "[crc32(row.ticket) for row in batch]", "[0] * len(batch)"),
            Edit("routing/messages.py", "partition_of(ticket_raw, count)) != number", "number) != number"),
        ),
        long=True,
    ),
    # -- promise 3, for lanes that somebody must lead and wake up ------------------------------------------------------
    Mutation(
        "a partition that nobody leads",
        "promise 3",
        "two partitions",
        ("ledger: lost", "scenario: stuck"),
        (Edit("bridge/master/lineup.py", "            found += lanes\n", "            found += lanes[:1]\n"),),
        long=True,
    ),
    Mutation(
        "a lane that sleeps is not woken",
        "promise 3",
        "sleeping lanes",
        ("ledger: lost", "scenario: stuck"),
        (
            Edit(
                "bridge/master/sleepers.py",
                "in ((place.keys.stream, place.read_to), (place.keys.outcomes, place.last_outcome)):",
                "in ((place.keys.outcomes, place.last_outcome),):",
            ),
        ),
        long=True,
    ),
    # -- promise 3, for each subscription: it gets every message that it wants ------------------------------------
    Mutation(
        "a subscription leaves out messages that it wants",
        "promise 3",
        "two subscriptions",
        ("ledger: lost", "audit: withheld"),
        (Edit("routing/filters.py", "if found not in texts:", "if found not in texts or fields[1] == b'T2':"),),
    ),
    Mutation(
        "an entry leaves when one subscription is done with it",
        "promise 3",
        "two subscriptions",
        ("ledger: dead",),
        (
            Edit(
                "bridge/leader/stream/retention.py",
                "self._cursor, end, page, spared=spared)",
                "self._cursor, end, page, self._keys.group, spared)",
            ),
            Edit(
                "bridge/leader/stream/retention.py",
                "mine[-1], 2 * SHARED_BATCH)",
                "mine[-1], 2 * SHARED_BATCH, self._keys.group)",
            ),
            Edit(HELD_BACK, "if not self._lanes:", "if True:"),
            Edit(REMOVE, "pairs(count > 0 and known or {})", "pairs({})"),
            Edit(REMOVE, "not (upto and younger(ARGV[i], upto))", "true"),
        ),
        long=True,
    ),
]
