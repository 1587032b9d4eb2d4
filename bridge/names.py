"""Names that the master and the workers must agree on."""

from __future__ import annotations

#: Name of the Celery task that carries a bundle.
BUNDLE_TASK = "bridge.bundle"

#: Header: the fence base of the dispatch; a message's fence is the base plus its offset.
HEADER_BASE = "bridge_fence"
#: Header: ``[[ticket, fence offset, messages, attempt, doubt], ...]``, a list for each run that the Celery message
#: carries. ``doubt`` is 1 when the run goes out again since it seems to be lost: then, and only then, an older run of
#: the ticket may still be here.
HEADER_RUNS = "bridge_runs"
#: Header: the incarnation that the message was dispatched to; any other one refuses it.
HEADER_INCARNATION = "bridge_incarnation"
