"""Names that the master and the workers must agree on."""

from __future__ import annotations

from enum import Enum

#: Name of the Celery task that carries a bundle.
BUNDLE_TASK = "bridge.bundle"
#: Name of the ordinary Celery task that pushes a message, for whatever sends tasks and knows no streams: Beat.
PUSH_TASK = "bridge.push"

#: Header: the fence base of the dispatch; a message's fence is the base plus its offset. The base is the fence of a
#: message with offset 0.
HEADER_BASE = "bridge_fence"
#: Header: a list of rows (`bridge.protocol.headers.RunHead`), one for each run that the Celery message carries; none in
#: a request to the worker (`HEADER_REQUEST`). A row says whether its run is in doubt. Only then may the worker still
#: hold an older run of that ticket.
HEADER_RUNS = "bridge_runs"
#: Header: the incarnation that the message was dispatched to; any other one refuses it.
HEADER_INCARNATION = "bridge_incarnation"
#: Header: ``[attempt, fence, consumer, cause]`` of an attempt of this message that was cut off half way
#: (`bridge.routing.records.LostAttempt`).
HEADER_LOST = "bridge_lost"
#: Header of a Celery message that carries no run: what the leader asks of the worker, a value of `WorkerRequest`.
HEADER_REQUEST = "bridge_word"
#: The message may have ended consumers: a worker takes it only while it has nothing of its other lanes.
HEADER_ALONE = "bridge_alone"
#: The message was fresh (`bridge.leader.picture.fresh`): a worker runs it before the bundles that wait there.
HEADER_FIRST = "bridge_first"
#: Header: ``[max_attempts, timeout ms, expires ms]`` of a message that has such options of its own
#: (`bridge.protocol.headers.OwnRules`).
HEADER_OWN = "bridge_own"


class WorkerRequest(Enum):
    """What the leader may ask of a worker, through its queue."""

    #: Nothing: that the message leaves the queue shows that the worker consumes.
    PROBE = "probe"
    #: To give back whatever no pool process has begun.
    GIVE_BACK = "give back"
