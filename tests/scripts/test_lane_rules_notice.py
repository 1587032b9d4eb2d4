"""`test_lane_rules` fails when a script, or the reference, lacks one of its rules."""

from __future__ import annotations

import hashlib

import pytest

from bridge.link.connections import client
from bridge.routing import effects, leadership, membership, transitions
from bridge.routing.scripts import Script
from bridge.stack.embedded import EmbeddedServer
from tests.protocol.guards import Guard
from tests.reference.lane import RULES
from tests.scripts.beside import Differs
from tests.scripts.test_lane_rules import explore

pytestmark = pytest.mark.scripts

_TERM = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then"
_NEVER = "if false then"
#: Not at random: what was seen once is seen again.
SEEDS = range(400)
_COMPARED = {
    "advance": "if (found[k - i + 1] or '') ~= ARGV[first + k * 2 + 2] then",
    "resend": "if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then",
}
#: what is taken out -> (script, its text, what stands there instead)
MUTATIONS = {
    **{
        f"the term, in {script.name}": (script, _TERM, _NEVER)
        for script in (
            *(transitions._READ, transitions._ADVANCE, transitions._REROUTE, transitions._FORGET, transitions._ADOPT),
            *(transitions._RESEND, transitions._RECALL),
            *(leadership._RESIGN, leadership._BEGIN_TERM),
        )
    },
    "the term, in renew": (leadership._RENEW, "if redis.pcall('GET', KEYS[m]) ~= ARGV[2 * m - 1] then", _NEVER),
    "a read ends when it has enough bytes": (
        transitions._READ,
        "count < most and bytes < budget do",
        "count < most do",
    ),
    "the expected record": (transitions._ADVANCE, _COMPARED["advance"], _NEVER),
    "the lease is over, before its tickets move": (
        transitions._REROUTE,
        "if redis.call('EXISTS', KEYS[6]) == 1 then",
        _NEVER,
    ),
    "outcomes are read, before tickets move": (
        transitions._REROUTE,
        "if fields[i] == 'i' and fields[i + 1] == ARGV[4] then",
        _NEVER,
    ),
    "a fence is newer than all before": (
        transitions._ADVANCE,
        "base = tonumber(now[1]) * 1000000 + tonumber(now[2])",
        "base = 7 redis.call('DEL', KEYS[7])",
    ),
    "an entry is acknowledged when it is over, not when it is dispatched": (
        transitions._ADVANCE,
        "claim(ARGV[to + 1], id, ids)",
        "call_chunked({'XACK', KEYS[6], group}, id, ids)",
    ),
    "the dispatch claims": (transitions._ADVANCE, "claim(ARGV[to + 1], id, ids)", ""),
    "the release forgets the fence of effects": (
        transitions._ADVANCE,
        "call_chunked({'HDEL', KEYS[3]}, first, size)",
        "",
    ),
    "a retry that goes out is due no more": (
        transitions._ADVANCE,
        "call_chunked({'ZREM', KEYS[4]}, section('due'))",
        "section('due')",
    ),
    "settled outcomes are trimmed": (transitions._ADVANCE, "if ARGV[4] ~= '' then", _NEVER),
    "the fence of effects": (effects._APPLY, "if not current then", _NEVER),
    "effects are applied once": (effects._APPLY, "elseif fence <= done then", "elseif false then"),
    "effects come with the outcome": (effects._APPLY, "if #accepted > 0 then", _NEVER),
    "one life of a name at a time": (
        membership._REGISTER,
        "if ARGV[5] ~= '' and redis.call('EXISTS', KEYS[3]) == 1 then",
        _NEVER,
    ),
    "a new life finds an empty queue": (membership._REGISTER, "redis.call('DEL', KEYS[4])", ""),
    "a live consumer is not forgotten": (transitions._FORGET, "if redis.call('EXISTS', KEYS[4]) == 1 then", _NEVER),
    "a death notice ends the lease": (membership._DIED, "redis.call('DEL', KEYS[1], KEYS[2])", ""),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_script_still_says_what_is_taken_out_of_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only `make long` runs the test below. This one fails at once when a script changes.
    mutate(*MUTATIONS[what], monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("what", MUTATIONS)
def test_a_script_without_it_differs(what: str, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(*MUTATIONS[what], monkeypatch)
    with client(valkey.url) as connected, pytest.raises(Differs):
        explore(connected, SEEDS)


@pytest.mark.parametrize("rule", [guard for guard in Guard if guard in RULES], ids=lambda rule: rule.value)
def test_a_reference_without_the_rule_differs(rule: Guard, valkey: EmbeddedServer) -> None:
    with client(valkey.url) as connected, pytest.raises(Differs):
        explore(connected, SEEDS, {rule})


def mutate(script: Script, taken_out: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.text.count(taken_out) == 1, f"{script.name}.lua does not say that (once): {taken_out}"
    changed = script.text.replace(taken_out, instead)
    monkeypatch.setattr(script, "text", changed)
    monkeypatch.setattr(script, "sha", hashlib.sha1(changed.encode(), usedforsecurity=False).hexdigest())
