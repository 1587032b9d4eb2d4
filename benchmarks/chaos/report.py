"""What is kept of a run, and how it is shown: the table, and the plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from benchmarks.chaos.judge import Evidence, judge, per_second
from benchmarks.figures import percentile
from benchmarks.plots import Axis, Line, bars, lines, ticks_to

#: What is kept of one peer: JSON values.
Kept = dict[str, Any]
#: Share of the messages that took longer -> so many points are kept of the distribution.
POINTS = 120


def kept(title: str, rounds: list[Evidence]) -> Kept:
    """The figures of one peer over its rounds, with what the table and the plots are made of. Times in seconds."""
    verdicts = [judge(evidence) for evidence in rounds]
    latencies = sorted(one for verdict in verdicts for one in verdict.latencies_s)
    return {
        "title": title,
        **{name: sum(getattr(verdict, name) for verdict in verdicts) for name in COUNTS},
        "rate": round(sum(verdict.rate for verdict in verdicts) / len(verdicts), 1),
        **{f"p{percent:g}": round(_percentile(latencies, percent), 4) for percent in (50, 99, 99.9)},
        "slower": slower(latencies),
        "rerouted_s": [round(one, 4) for verdict in verdicts for one in verdict.rerouted_s],
        "per_second": per_second(rounds[0]),
        "kills": [_kills(evidence) for evidence in rounds],
        "each_round": [{name: getattr(verdict, name) for name in COUNTS} for verdict in verdicts],
    }


#: A peer that handled less than this share of what was pushed had a backlog.
KEPT_UP = 0.95
#: What is added up over the rounds: fields of `Verdict`.
COUNTS = ("pushed", "done", "lost", "stuck", "reordered", "overlapped", "doubled", "repeated", "stranded")
#: Those that break a promise, with their headings.
VIOLATIONS = {
    "lost": "lost",
    "stuck": "stuck",
    "reordered": "reordered",
    "overlapped": "overlapped",
    "doubled": "twice",
}


def slower(latencies: list[float]) -> list[tuple[float, float]]:
    """(time, share of the messages that took longer): points of the distribution, denser where few are left."""
    if not latencies:
        return []
    count = len(latencies)
    shares = [10 ** (-4 * i / POINTS) for i in range(POINTS + 1)]
    kept_at = sorted({min(count - 1, int(count * (1 - share))) for share in shares})
    return [(round(latencies[i], 4), round(1 - i / count, 6)) for i in kept_at]


def _percentile(latencies: list[float], percent: float) -> float:
    return percentile(latencies, percent) if latencies else 0.0


def _kills(evidence: Evidence) -> list[tuple[float, str]]:
    began = min(evidence.pushed.values(), default=0)
    return [(round((kill.at - began) / 1e9, 2), kill.kind) for kill in evidence.kills]


def markdown(data: Mapping[str, Any]) -> str:
    """The table of the page, from what was kept."""
    machine, plan = data["machine"], data["plan"]
    rounds = f"{plan['rounds']} round" + "s" * (plan["rounds"] != 1)
    about = (
        f"{rounds} of {plan['seconds']:g} s, {plan['rate']:g} messages a second of {plan['tickets']} "
        f"tickets, tasks of {1000 * plan['work_s']:g} ms, {plan['kills_a_minute']:g} kills a minute (seed "
        f"{plan['seed']}). {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, Celery "
        f"{machine['celery']}, {machine['server']}; {', '.join(data['peers_versions'])}; {machine['at'][:10]}, "
        f"load before {machine['load before'].split()[0]}."
    )
    heads = ("peer", "kills", "msg/s", "p50", "p99", "p99.9", "re-route p50 / max", *VIOLATIONS.values(), "of")
    rows = [heads, ("---",) * len(heads)]
    for peer in data["peers"].values():
        times = sorted(peer["rerouted_s"])
        again = f"{_time(percentile(times, 50))} / {_time(times[-1])}" if times else "none"
        if peer["stranded"]:
            again += f", {peer['stranded']} never"
        counts = [f"**{peer[name]}**" if peer[name] else "0" for name in VIOLATIONS]
        shown = [_time(peer[name]) for name in ("p50", "p99", "p99.9")]
        rows.append((peer["title"], _kinds(peer), f"{peer['rate']:.0f}", *shown, again, *counts, f"{peer['pushed']:,}"))
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{about}\n\n{table}\n\nKills: W of workers, M of masters, S of the server. {limits(data)}\n"


def limits(data: Mapping[str, Any]) -> str:
    """What the run cannot show: kinds of kills that it did not have, and peers that handled less than was pushed."""
    plan, peers = data["plan"], list(data["peers"].values())
    struck = {kind for peer in peers for kills in peer["kills"] for _, kind in kills}
    sentences = [f'In this run no kill struck the kind "{kind}".' for kind in plan["kinds"] if kind not in struck]
    behind = [f"{peer['title']} ({peer['rate']:.0f})" for peer in peers if peer["rate"] < KEPT_UP * plan["rate"]]
    if behind:
        sentences.append(
            f"Of the {plan['rate']:g} messages a second that were pushed, these peers handled fewer: "
            f"{', '.join(behind)}. Their times are those of a backlog, and not of the faults."
        )
    return " ".join(sentences)


def _kinds(peer: Kept) -> str:
    """How many kills of each kind there were, in all rounds."""
    counts = Counter(kind for kills in peer["kills"] for _, kind in kills)
    return ", ".join(f"{count} {kind[0].upper()}" for kind, count in sorted(counts.items(), reverse=True)) or "none"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _steps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """As steps: a share holds until the next time that was measured."""
    made = points[:1]
    for (_, share), (at, less) in pairwise(points):
        made += [(at, share), (at, less)]
    return made


def plots(data: Mapping[str, Any]) -> dict[str, str]:
    """File name -> SVG."""
    peers = list(data["peers"].values())
    times = Axis("time of a message through the system, seconds", (0.01, 0.1, 1, 10, 100), log=True)
    shares = Axis("share of the messages that took longer", (0.0001, 0.001, 0.01, 0.1, 1), log=True)
    distribution = [Line(peer["title"], _steps(peer["slower"])) for peer in peers]
    highest = max((max(peer["per_second"], default=0) for peer in peers), default=0)
    longest = max((len(peer["per_second"]) for peer in peers), default=1)
    per_s = [Line(peer["title"], list(enumerate(peer["per_second"]))) for peer in peers]
    first = peers[0]["kills"][0] if peers else []
    marks = [(at, kind[0].upper()) for at, kind in first]
    worst = max((peer[name] for peer in peers for name in VIOLATIONS), default=0)
    return {
        "chaos-times.svg": lines("How long messages took while processes died", times, shares, distribution),
        "chaos-rate.svg": lines(
            "Messages done in each second; W, M, S: a worker, a master, the server killed (first round)",
            Axis("seconds", ticks_to(longest)), Axis("messages", ticks_to(highest)), per_s, marks,
        ),
        "chaos-violations.svg": bars(
            "Violations", Axis("messages", ticks_to(worst)), list(data["peers"]),
            [(heading, [peer[name] for peer in peers]) for name, heading in VIOLATIONS.items()],
        ),
    }  # fmt: skip
