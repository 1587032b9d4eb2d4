"""`python -m tests.protocol`: explores the model of the hand-over to a bound of one's choice; see `--help`."""

from __future__ import annotations

import argparse
import sys

from tests.protocol.explore import Exploration
from tests.protocol.guards import Guard
from tests.protocol.world import Setup


def main() -> int:
    """0: everything holds; 1: something does not, and the trace was printed; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--faults", type=int, default=2, help="most faults in one history (default 2)")
    parser.add_argument("--messages", type=int, default=2, help="messages of each ticket (default 2)")
    parser.add_argument("--tickets", type=int, default=1, help="tickets (default 1)")
    parser.add_argument("--workers", type=int, default=2, help="workers (default 2)")
    parser.add_argument("--plain", action="store_true", help="tasks without effects")
    parser.add_argument("--leaving", action="store_true", help="workers are asked to stop, too")
    parser.add_argument("--recalling", action="store_true", help="the leader empties queues, too")
    parser.add_argument("--run-max", type=int, default=2, help="longest run (default 2)")
    parser.add_argument("--attempts", type=int, default=2, help="attempts of a message (default 2)")
    parser.add_argument("--most", type=int, default=100_000_000, help="give up after so many states")
    parser.add_argument("--no-ends", action="store_true", help="do not look for good ends; saves memory")
    parser.add_argument("--drop", action="append", default=[], metavar="GUARD", help="do without this guard, by name")
    parser.add_argument("--guards", action="store_true", help="list the guards")
    given = parser.parse_args()
    if given.guards:
        print("\n".join(guard.value for guard in Guard))
        return 0
    try:
        dropped = {Guard(name) for name in given.drop}
    except ValueError as exc:
        parser.error(f"{exc}; --guards lists them")
    setup = Setup(
        messages=(given.messages,) * given.tickets,
        faults=given.faults,
        effects=not given.plain,
        leaving=given.leaving,
        recalling=given.recalling,
        run_max=given.run_max,
        attempts_max=given.attempts,
        workers=given.workers,
    )
    found = Exploration(setup, dropped, most=given.most, ends=not given.no_ends).run()
    print(
        f"{found.states:,} states ({', '.join(f'{n:,} with {i} faults' for i, n in enumerate(found.by_faults))}), "
        f"{found.steps:,} steps, {found.seconds:.1f} s{'' if found.complete else '; NOT complete'}"
    )
    if found.broken:
        print("\n".join(found.trace))
        return 1
    print(f"everything holds{'' if given.no_ends else f'; {found.ends:,} good ends, one within reach of every state'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
