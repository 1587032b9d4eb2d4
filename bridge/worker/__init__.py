"""The worker side: what `bridge.install` adds to a Celery worker."""
