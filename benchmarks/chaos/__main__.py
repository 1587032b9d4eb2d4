"""``python -m benchmarks.chaos``: what queues do with order while their processes die. Nobody else publishes this."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.chaos.judge import Evidence, judge
from benchmarks.chaos.peers import PEERS
from benchmarks.chaos.report import VIOLATIONS, kept, markdown, plots
from benchmarks.chaos.run import WEIGHTS, Plan, run
from benchmarks.machine import describe
from benchmarks.peers.node import NotInstalled
from benchmarks.report import show_machine
from benchmarks.stack import ROOT
from bridge.routing.errors import TicketBridgeError

#: What the page shows, and where its plots are.
PUBLISHED = ROOT / "benchmarks" / "data" / "chaos.json"
PICTURES = ROOT / "docs" / "pictures"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Each with a seed of its own."
)
@click.option("--seconds", type=float, default=60.0, show_default=True, help="How long messages are pushed.")
@click.option("--rate", type=float, default=75.0, show_default=True, help="Messages a second.")
@click.option("--tickets", type=click.IntRange(1), default=60, show_default=True)
@click.option("--work-ms", type=float, default=40.0, show_default=True, help="What a task takes.")
@click.option("--kills", type=float, default=12.0, show_default=True, help="Kills a minute.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(WEIGHTS)), help="Kill only these; repeatable.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the first round. Each later one adds 1.")
@click.option("--only", multiple=True, type=click.Choice(list(PEERS)), help="This peer only; may be repeated.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where figures and plots go.")
@click.option("--publish", is_flag=True, help="Put figures and plots where the page takes them from; see make pages.")
def main(
    rounds: int,
    seconds: float,
    rate: float,
    tickets: int,
    work_ms: float,
    kills: float,
    kinds: tuple[str, ...],
    seed: int,
    only: tuple[str, ...],
    out: Path | None,
    publish: bool,
) -> None:
    """Kills workers, masters and the server under load, and counts what is lost, reordered, overlapped or done twice.

    Each peer gets the same messages, work and kills, and is judged by the same code. Exits with 1 when a run broke, or
    when the bridge violated a promise. A violation by another peer is shown, and is no failure.
    """
    console = Console(width=None if sys.stdout.isatty() else 170)
    plan = Plan(
        seconds=seconds, rate=rate, tickets=tickets, work_s=work_ms / 1000, kills_a_minute=kills,
        kinds=kinds or tuple(WEIGHTS), seed=seed,
    )  # fmt: skip
    out = out or ROOT / "benchmarks" / "runs" / f"chaos-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    found: dict[str, list[Evidence]] = {}
    versions = []
    try:
        machine = describe()
        show_machine(console, machine)
        for name in only or PEERS:
            try:
                if version := PEERS[name].version():
                    versions.append(version)
            except NotInstalled as reason:
                console.print(f"left out: {reason}", highlight=False, soft_wrap=True)
                continue
            found[name] = []
        for turn in range(rounds):
            for name, evidence in found.items():
                evidence.append(_round(console, name, replace(plan, seed=plan.seed + turn)))
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    data: dict[str, Any] = {
        "machine": machine,
        "plan": {**asdict(plan), "rounds": rounds},
        "peers_versions": versions,
        "peers": {name: kept(PEERS[name].title, evidence) for name, evidence in found.items()},
    }
    console.print(markdown(data), highlight=False, soft_wrap=True, markup=False)
    write(data, out / "chaos.json", out)
    if publish:
        write(data, PUBLISHED, PICTURES)
    console.print(f"Figures and plots: {out}", soft_wrap=True)
    if "bridge" in found and any(data["peers"]["bridge"][name] for name in VIOLATIONS):
        sys.exit(1)


def _round(console: Console, name: str, plan: Plan) -> Evidence:
    title = f"seed {plan.seed}: {PEERS[name].title}"
    with console.status(title) as status:

        def say(text: str) -> None:
            status.update(f"{title}: {text}")

        evidence = run(PEERS[name], plan, say)
    verdict = judge(evidence)
    counts = ", ".join(f"{getattr(verdict, name)} {heading}" for name, heading in VIOLATIONS.items())
    console.print(f"{title}: {len(evidence.kills)} kills, {verdict.rate:.0f} msg/s; {counts}", highlight=False)
    return evidence


def write(data: Mapping[str, Any], figures: Path, pictures: Path) -> None:
    """The figures as JSON, and the plots made of them."""
    figures.parent.mkdir(parents=True, exist_ok=True)
    figures.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    for name, text in plots(data).items():
        (pictures / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
