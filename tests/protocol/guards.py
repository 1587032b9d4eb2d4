"""The guards of the protocol, by name: where each is in the code, and what it prevents.

A model that drops one (`python -m tests.protocol --drop NAME`) must find a broken promise; a test asserts that.
"""

from __future__ import annotations

from enum import Enum


class Guard(Enum):
    """A comparison, an order of steps or a rule that some race is closed by."""

    # -- in the scripts of the leader
    #: advance.lua compares the leader's key with the term of the caller.
    TERM_ADVANCE = "term in advance"
    #: read.lua does.
    TERM_READ = "term in read"
    #: reroute.lua does.
    TERM_REROUTE = "term in reroute"
    #: advance.lua and reroute.lua compare each record with what the caller thought it was.
    EXPECTED = "expected record"
    #: reroute.lua: the key of the lease is gone.
    LEASE_OVER = "lease over"
    #: reroute.lua: no outcome of the incarnation is unread.
    UNREAD = "unread outcomes"
    #: advance.lua: a fence is larger than any before.
    FENCES_GROW = "fences grow"
    #: apply.lua: the fence is the current one.
    EFFECT_FENCE = "fence of effects"
    #: apply.lua: these effects were not applied before.
    APPLIED_ONCE = "applied once"

    # -- in the leader
    #: bridge/leader/picture/settling.py: an outcome with another fence than the current one changes nothing.
    OUTCOME_FENCE = "fence of outcomes"
    #: bridge/leader/picture/settling.py: nothing is acknowledged before its outcome was read.
    OUTCOME_FIRST = "outcome before XACK"
    #: bridge/leader/takeover/rebuild.py: a new leader reads what waits before it reads on in the stream.
    REBUILD = "read the lane first"
    #: bridge/leader/leader.py: a leader that reads the lane again begins a new term. So a script that it gave up, and
    #: that is still on its way, has an old term.
    FRESH_TERM = "a term for each reading"
    #: bridge/leader/consumers/leases.py: a lease that the server's clock may have ended before its time is judged when
    #: its worker trusts in it no longer.
    CLOCKS_AGREE = "clocks agree"
    #: bridge/leader/consumers/lost_runs.py: a run that seems lost keeps its record and fence; only its Celery message
    #: goes out again.
    SAME_FENCE = "resend with the same fence"
    #: bridge/leader/consumers/queues.py: from a queue the leader takes back only what was sent since the server's last
    #: outage: after one, the queue may hold again what the worker took before.
    RECALL_OWN = "own messages recalled"
    #: bridge/leader/consumers/queues.py: and nothing that was sent twice.
    RECALL_SINGLE = "single messages recalled"

    # -- in the worker
    #: bridge/consumer/holdings.py: the fence is newer than all that were seen here of its ticket.
    NEWEST = "newest fence"
    #: bridge/worker/pool/execute.py: the lease of the incarnation that a message was dispatched to holds when it
    #: starts.
    START_LEASE = "lease at start"
    #: bridge/consumer/lease.py and the pool's children: past the deadline what runs is killed.
    SELF_FENCE = "self-fencing"
    #: bridge/consumer/lease.py: the worker's own deadline comes before the end of the key.
    DEADLINE_FIRST = "own deadline first"
    #: bridge/consumer/lease.py: a renewal (PEXPIRE) never revives a lease that ended.
    NEVER_REVIVE = "never revive"
    #: bridge/worker/pool/execute.py: the outcome of a message is written before the next one of its ticket starts.
    WRITTEN_FIRST = "written before the next"
    #: bridge/worker/pool/execute.py: a failure ends its ticket's run.
    RUN_STOPS = "a failure ends the run"
    #: bridge/worker/pool/execute.py, warm_shutdown.py: a child notes a fence before it reads the recall.
    NOTE_FIRST = "note before the look"
    #: bridge/worker/main/warm_shutdown.py: from the queue a worker gives back only what is not here already: it may
    #: run.
    QUEUE_KNOWN = "known when given back"
    #: bridge/worker/main/requests.py: a process that is killed at its time limit is gone before its loss is told.
    GONE_BEFORE_TOLD = "gone before told"
    #: bridge/worker/guard/watcher.py: a death notice is written only when all pool children are gone.
    CHILDREN_GONE = "children gone"

    # -- second lines: what they keep out, another guard keeps out, too
    #: bridge/worker/main/member.py: a Celery message for another incarnation is not taken.
    TAKE_LIFE = "incarnation when taken"
    #: register.lua: a new incarnation waits until the lease of the one before it is over.
    WAITS_OUT = "waits the old lease out"
    #: register.lua: a new incarnation deletes what is in the queue.
    QUEUE_DELETED = "queue deleted"


#: Second lines of defence -> the guard that keeps the same promise when this one is dropped. None: no promise needs it
#: (`WAITS_OUT` only decides which of two workers of one name gets the error).
SECOND_LINES: dict[Guard, Guard | None] = {
    Guard.EXPECTED: Guard.FRESH_TERM,
    Guard.TERM_REROUTE: Guard.EXPECTED,
    Guard.TAKE_LIFE: Guard.START_LEASE,
    Guard.QUEUE_DELETED: None,
    Guard.WAITS_OUT: None,
}
