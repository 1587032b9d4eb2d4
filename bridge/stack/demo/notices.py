"""The HTTP consumer of the demo: a program in Node that handles the urgent events, and what the ledger says of it.

The program is `notices.mjs`, beside this file. It has the subscription `NOTICES` to itself, and writes the same ledger
as the tasks. Spark also finds out which events are urgent, from the log alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bridge.http.options import require_extra
from bridge.routing.errors import ConfigurationError
from bridge.stack.demo.ledger import Ledger
from bridge.stack.demo.verdict import NoticesVerdict, judge

#: The name of the subscription that only the program serves.
NOTICES = "notices"
#: Events with one of these priorities are urgent. The filter of the subscription names the same ones.
URGENT = ("1 - Critical", "2 - High")
#: The name under which the program registers.
CONSUMER = "node-1"
PROGRAM = Path(__file__).with_name("notices.mjs")
#: The environment variable that holds the program's token.
TOKEN = "BRIDGE_NOTICES_TOKEN"  # noqa: S105 - a name
#: What the program needs, and Node has from version 18 on.
_CHECK = "process.exit(typeof fetch === 'function' ? 0 : 1)"
#: Longest time for Node to say whether it has it, in seconds.
_CHECK_S = 30.0


def why_not() -> str | None:
    """Why there can be no HTTP consumer in Node here, in words. None: there can be one."""
    node = shutil.which("node")
    if node is None:
        return "there is no program `node`"
    try:
        require_extra()
    except ConfigurationError:
        return "the extra http is not installed (pip install 'ticket-bridge[http]')"
    try:
        subprocess.run([node, "-e", _CHECK], check=True, capture_output=True, timeout=_CHECK_S)
    except (OSError, subprocess.SubprocessError):
        return f"{node} does not run, or is older than version 18"
    return None


def command(master: str, ledger_dir: Path) -> list[str]:
    """The command of the program. ``master``: the address of a master's port."""
    return [shutil.which("node") or "node", str(PROGRAM), master, CONSUMER, NOTICES, str(ledger_dir)]


def judge_notices(ledger: Ledger, urgent: Mapping[str, Sequence[int]], done: int, dead: int) -> NoticesVerdict:
    """What the ledger says of the program.

    ``urgent``: ticket -> the numbers of its urgent events, in order. ``done``, ``dead``: as the subscription counts its
    messages.
    """
    # They are numbered again from 1, as `judge` has it. What is not urgent comes after all of them.
    places = {ticket: {seq: place for place, seq in enumerate(seqs, 1)} for ticket, seqs in urgent.items()}
    renumbered = [
        record._replace(seq=places.get(record.ticket, {}).get(record.seq, len(ledger.records) + 1))
        for record in ledger.of(NOTICES).records
    ]
    wanted = {ticket: len(seqs) for ticket, seqs in urgent.items()}
    findings = judge(Ledger(ledger.processes, renumbered), wanted, {})
    return NoticesVerdict(sum(wanted.values()), done, dead, findings)
