"""Reports of workers, by libraries that many workers report with. A worker gets it by ``--include``.
``REFUSING_REPORTED_BY`` names the library. What it would send goes into a file of the ledger's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery.signals import worker_process_init


def report(kind: str, **found: Any) -> None:
    """Keeps one report."""
    with (Path(os.environ["COUNTER_LEDGER"]) / "reports").open("a") as file:
        file.write(json.dumps({"kind": kind, **found}) + "\n")


def start_sentry() -> None:
    """As Sentry's own page has it for Celery: where the app is loaded."""
    import sentry_sdk
    from sentry_sdk.envelope import Envelope
    from sentry_sdk.transport import Transport

    class ToFile(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            for item in envelope.items:
                found: Any = item.payload.json
                if item.type in ("event", "transaction"):
                    report(
                        "run" if item.type == "transaction" else "error",
                        task=found["transaction"],
                        id=found["tags"]["celery_task_id"],
                        ended=found["contexts"]["trace"].get("status"),
                        errors=[error["value"] for error in found.get("exception", {}).get("values", ())],
                    )

    sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", traces_sample_rate=1.0, transport=ToFile)


def start_opentelemetry(**_: Any) -> None:
    """As OpenTelemetry's own page has it for Celery: in each pool process."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class ToFile(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            for span in spans:
                about = dict(span.attributes or {})
                report(
                    "run",
                    task=about["celery.task_name"],
                    id=about["messaging.message.id"],
                    ended=about["celery.state"],
                    errors=[(event.attributes or {})["exception.message"] for event in span.events],
                )
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


match os.environ.get("REFUSING_REPORTED_BY"):
    case "sentry":
        start_sentry()
    case "opentelemetry":
        worker_process_init.connect(start_opentelemetry)
