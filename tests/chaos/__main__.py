"""One short chaos run by hand, to replay a seed or to try one kind of fault: ``python -m tests.chaos --help``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from bridge.stack.server_program import FsyncPolicy
from tests.chaos.draw import ACTIONS, MIXED, PREFORK, Cast
from tests.chaos.short import PACE_S, in_words, short_run
from tests.chaos.subscriptions import ONE, draw_subscriptions, split
from tests.chaos.versions import VERSIONS, Versions


@click.command()
@click.option("--seed", type=int, help="Replays a draw [default: a new one, printed].")
@click.option("--faults", default=30, show_default=True)
@click.option("--workers", default="mixed", show_default=True, help="mixed, prefork, or pools: prefork,solo,threads")
@click.option("--violent", is_flag=True, help="Messages may kill or hang their pool process (prefork only).")
@click.option("--culprits", default=0.0, show_default=True, help="Share of messages that kill their whole worker.")
@click.option("--fsync", type=click.Choice(["always", "everysec"]), default="always", show_default=True)
@click.option("--bundle-ms", default=10.0, show_default=True, help="0: no bundles.")
@click.option("--pace", default=PACE_S, show_default=True, help="Seconds between two faults, on average.")
@click.option("--subscriptions", is_flag=True, help="The app has three, drawn by the seed.")
@click.option("--partitions", default=1, show_default=True, help="How many the stream has.")
@click.option(
    "--versions",
    type=click.Choice(VERSIONS),
    default="one",
    show_default=True,
    help="Of the stream: one, both from the beginning, or the deploy of the newer one as a fault.",
)
@click.option("--repartition", is_flag=True, help="The number of partitions changes, as a fault.")
@click.option("--only", multiple=True, type=click.Choice(sorted(ACTIONS)), help="Only this fault; may be repeated.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where logs and ledger stay [default: a new one].")
def main(
    seed: int | None,
    faults: int,
    workers: str,
    *,
    violent: bool,
    culprits: float,
    fsync: FsyncPolicy,
    bundle_ms: float,
    pace: float,
    subscriptions: bool,
    partitions: int,
    versions: Versions,
    repartition: bool,
    only: tuple[str, ...],
    folder: Path | None,
) -> None:
    """Does drawn faults to real workers, masters and a server under load, and checks every promise."""
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    folder = folder or Path(tempfile.mkdtemp(prefix="ticket-bridge-chaos-")) / "run"
    click.echo(f"seed {seed}; logs, ledger and data in {folder}")
    known = {"mixed": MIXED, "prefork": PREFORK}
    cast = known.get(workers) or Cast(tuple((f"w{i}", pool) for i, pool in enumerate(workers.split(","), start=1)))
    result = short_run(
        folder,
        seed,
        faults,
        cast,
        violent=violent,
        bundle_ms=bundle_ms,
        pace_s=pace,
        only=only,
        culprits=culprits,
        versions=versions,
        repartitions=repartition,
        subscriptions=split(draw_subscriptions(seed) if subscriptions else ONE, partitions),
        say=click.echo,
        fsync=fsync,
    )
    click.echo(in_words(result))
    click.echo(result.describe() if result.violations else "no violation")
    sys.exit(1 if result.violations else 0)


if __name__ == "__main__":
    main()
