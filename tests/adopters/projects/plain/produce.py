"""Pushes ten messages for each of three tickets, and waits for the result of one more."""

from shop import append, total

for n in range(10):
    for ticket in ("T0", "T1", "T2"):
        append.push(ticket, {"n": n})
print(total.AsyncResult(total.push("T0", {"n": 7})).get(timeout=60))
