"""Every Celery and `bridge_` setting that differs from its default, each with its reason."""

import os

# A variable that is empty is not set: a compose file passes variables on so.

# ---- Celery ----------------------------------------------------------------------------------------------------------

# The Redis that holds the stream is Celery's broker too. A variable, so that every process of a stack, here and in
# docker-compose.yml, is pointed at the same server from outside.
broker_url = os.environ.get("BRIDGE_BROKER_URL") or "redis://localhost:6379/0"

# The same server. Only tasks that do not say `ignore_result=True` write there.
result_backend = broker_url

# Loaded by workers and masters at their start: a master must know the tasks to tell a good message from one that
# names a task that does not exist.
imports: tuple[str, ...] = ("tasks.incidents",)

# So that Flower shows each task, the messages of bundles too, also those that ran before it was started. Three events
# for each message cost a worker about as much as a small task does: BRIDGE_TASK_EVENTS=0 turns them off.
worker_send_task_events = os.environ.get("BRIDGE_TASK_EVENTS") != "0"

# The default (None) warns at every start that Celery 6 will not retry by itself. A worker that starts before its server
# is to wait for it.
broker_connection_retry_on_startup = True

# The default gives up after a hundred tries. A server may be away for a night.
broker_connection_max_retries = None

# ---- Ticket Bridge ---------------------------------------------------------------------------------------------------

# Messages without a task are incident events. So producers need not know the name of a Python function.
bridge_default_task = "tasks.incidents.record_event"

# There is one subscription, named by bridge_group, unless one of the variables below adds others. `bridge demo` sets
# them, and judges what these others did.
_subscriptions: dict[str, dict[str, object]] = {"concurrency_stream_group": {"task": bridge_default_task}}

# A second subscription, which keeps an audit trail of the incidents.
if (os.environ.get("BRIDGE_AUDIT_TRAIL") or "0") != "0":
    imports = (*imports, "tasks.trail")
    # Its task is the cheaper one. With shorter bundles the other subscription has more turns in a worker.
    _subscriptions["audit_trail"] = {"task": "tasks.trail.note_event", "bundle_ms": 2.0}

# One more, for the urgent events alone. A program in Node handles them over HTTP, so Celery workers serve the others.
if (os.environ.get("BRIDGE_NOTICES") or "0") != "0":
    imports = (*imports, "tasks.notices")
    bridge_serve = list(_subscriptions)
    _subscriptions["notices"] = {"task": "tasks.notices.notify", "filter": {"priority": ["1 - Critical", "2 - High"]}}

if len(_subscriptions) > 1:
    bridge_subscriptions = _subscriptions

# These tasks fail only when Redis fails for moments. So retries come soon. Attempt n waits
# base * factor ** (n - 1) seconds, at most `limit`, of which up to the share `jitter` is taken off by chance.
bridge_backoff = {"base": 0.5, "factor": 2.0, "limit": 30.0, "jitter": 0.5}

# Length of a worker's lease, in seconds. Its tickets move after the lease is over. The default unless a stack says
# otherwise, as `bridge demo --lease 2` does; masters and workers must have the same.
if _lease := os.environ.get("BRIDGE_LEASE"):
    bridge_lease = float(_lease)

# A file that the loop of a master and of a worker touches as it turns, for a container's health check to look at.
bridge_health_file = os.environ.get("BRIDGE_HEALTH_FILE") or None

# The other settings of the bridge are at their defaults:
#
# bridge_redis_url = broker_url           the server of the stream; must be the broker's server and database
# bridge_stream = "ticket_stream"         the stream that messages come from
# bridge_partitions = 1                   streams that share the tickets; see docs/howto/partitions.md
# bridge_group = "concurrency_stream_group"   its consumer group; several groups on one stream never meet
# bridge_master = "master"                the group's consumer under whose name messages wait
# bridge_app = None                       the name under which the app takes part; None: its own, Celery("name"). A lane
#                                         belongs to one app: another name stops at start
# bridge_follows = []                     older versions of the stream, oldest first; see docs/howto/change-messages.md
# bridge_filter = None                    which messages the group wants, by their fields; None: all
# bridge_policy = "least_loaded"          who gets a ticket that nobody has: or "rendezvous", "round_robin", "random"
# bridge_lease = 6.0                      seconds; see above
# bridge_leader_lease = 5.0               length of the leader lease, in seconds; a standby takes over when it is over
# bridge_max_attempts = 5                 attempts before a message goes to the dead letters; a task may have its own
# bridge_max_deliveries = 1000            deliveries, as XPENDING counts them, beyond which a message that other
#                                         programs take is a dead letter; None: never
# bridge_on_dead = "skip"                 the ticket of a dead message goes on with the next one; "park": it stops
# bridge_breaker = {"share": 0.9, "tickets": 20, "seconds": 60.0, "probe": 5.0}   a task's messages wait when so many
#                                         different tickets failed within so many seconds, and those are this share of
#                                         the task's outcomes; one is tried every `probe` s. A share of 0: never
# bridge_dead_max = 100000                dead letters at which nothing new is read until some are replayed or dropped
# bridge_history = 100000                 results that the history keeps at least, about 130 bytes each; 0: none
# bridge_retention = 0.0                  seconds that an entry stays in the stream after it was added, also when every
#                                         group has acknowledged it; None: for ever. One with a dead letter stays
# bridge_unknown_after = 600.0            seconds that a message waits for a consumer that has its task, when none has
#                                         had it so far; then it is a dead letter
# bridge_max_payload = 1048576            bytes of JSON; what is larger goes to the dead letters at once
# bridge_max_state = 1048576              bytes of the state of one ticket
# bridge_state_ttl = None                 seconds after its last change after which a state is deleted; None: it is kept
# bridge_bundle_ms = 10.0                 how long a bundle of short tasks lasts, in ms; 0 turns bundles off
# bridge_window = 50000                   messages that the leader keeps in memory; the rest waits in Redis
# bridge_window_bytes = 134217728         and the bytes of these; half may be in flight: see docs/explanation/memory.md
# bridge_http_max_body = 4194304          bytes of the body of one HTTP request (`bridge run --http`)
# bridge_http_max_polls = 10000           long polls, and connections, of HTTP clients to one master; more are answered
# bridge_http_max_connections = 12000     with 503
# bridge_on_dead_notify = {}              nobody is told of dead letters; see docs/howto/notices.md
# bridge_schedule = {}                    no recurring messages; see docs/howto/schedule.md
# bridge_http_health_networks = []        networks of the health URLs of HTTP consumers that a master may ping; none
# bridge_max_lag = {}                     no limit: what falls behind keeps its messages in the stream. {"count": …},
#                                         {"bytes": …} or {"age": …} with "then": "skip" or "park" sets one
