"""Names that the master and the workers must agree on."""

from __future__ import annotations

#: Name of the Celery task that carries a bundle.
BUNDLE_TASK = "bridge.bundle"

#: Header: the fence base of the dispatch; a message's fence is the base plus its offset.
HEADER_BASE = "bridge_fence"
#: Header: ``[[ticket, fence offset, messages, attempt], ...]``, a list for each run that the Celery message carries.
HEADER_RUNS = "bridge_runs"
#: Header: the incarnation that the message was dispatched to; any other one refuses it.
HEADER_INCARNATION = "bridge_incarnation"
