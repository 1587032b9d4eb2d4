"""What every consumer of a lane needs: a lease, the list of runs that it holds, its registration, a writer of outcomes.

Imports `bridge.protocol` and what is below it, and no Celery. The consumer that is a Celery worker is in
`bridge.worker`. The leader's side of consumers is in `bridge.leader`.
"""
