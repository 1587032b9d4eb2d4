"""What any consumer of a lane needs: a lease, what it holds, its registration, and a writer of outcomes.

Imports `bridge.protocol` and what is below it, and knows no Celery worker. The consumer that is a Celery worker is in
`bridge.worker`; what the leader does about consumers is in `bridge.leader`.
"""
