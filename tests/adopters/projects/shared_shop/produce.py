import worker_app  # noqa: F401 (makes it the default app)
from orders import ship
from stock import reserve

for n in range(5):
    reserve.push("T0", n)
    ship.push("T0", n)
