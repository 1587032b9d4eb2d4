"""Words that the glossary replaces, and words that make riddles, occur in no name, comment or page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("bridge", "routing", "spark", "tasks", "tests", "benchmarks", "docs")
KINDS = (".py", ".lua", ".md", ".html", ".js", ".mjs", ".toml", ".yml")

#: Word -> what to write. Only words that have no other use here: "topic" has none, "session" is Spark's, too.
NOT_USED = {
    "slave": "standby, or replica of a server",
    "follower": "standby",
    "topic": "stream",
    "entity": "ticket",
    "conversation": "ticket",
    "poison": "dead letter",
    "whereabouts": "state, or place",
    "amnesty": "spare: no lease counts as over for a time",
    "condemn": "give up",
    "farewell": "good-bye",
    "anew": "again",
    "whoever": "the subject itself: the leader, a worker, a process",
    "whomever": "the subject itself",
}
#: Word -> what to write, and the folders where it has no other use. Elsewhere transactions and epochs are committed,
#: and threads and machines are blocked or paused.
NOT_USED_IN = {
    **dict.fromkeys(
        ("commit", "committed"),
        ("settled, or written", ("bridge/leader", "bridge/worker", "bridge/consumer", "bridge/protocol")),
    ),
    "blocked": ("parked, or waiting", ("bridge/leader", "bridge/inspect", "bridge/operate", "bridge/cli")),
    "paused": ("parked, or stopped by a circuit breaker", ("bridge/inspect", "bridge/operate", "bridge/cli")),
}
#: Several words -> what to write.
PHRASES = {
    "passed over": "skipped, or ignored",
    "such a one": "the thing itself",
    "no such one": "the thing itself",
    "what is there": "the thing itself: the data, the keys, the messages",
    "for whatever reason": "nothing: say what happened",
    "and the like": "the things themselves",
    "come from where": "name the place",
    "what runs runs": "a running task goes on",
}
#: File -> the words that it may have, and why.
ALLOWED = {
    # The list of words that are not used.
    "docs/reference/glossary.md": {"slave", "follower", "topic", "entity", "conversation", "poison"},
    # The field of a sentinel's reply.
    "tests/integration/sentinels.py": {"slave"},
    # A type of exchange, and a method of kombu.
    "bridge/worker/main/bundle_events.py": {"topic"},
    "tests/unit/worker/test_bundle_events.py": {"topic"},
}
#: A part of a name, or a word of a sentence: `OrderDesk` and `order_desk` have the same two.
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            # What `make docs` built holds the words of its generator, installed peers those of their authors.
            if {"_build", "node_modules"} & set(path.parts):
                continue
            # Links lead to folders that are read under their own names.
            if path.suffix in KINDS and path != Path(__file__) and not any(one.is_symlink() for one in path.parents):
                yield path
    yield from ROOT.glob("*.md")


def instead(file: str) -> dict[str, str]:
    """Word -> what to write in ``file``."""
    here = {word: said for word, (said, folders) in NOT_USED_IN.items() if file.startswith(folders)}
    return {**NOT_USED, **PHRASES, **here}


def not_used(text: str, file: str = "") -> dict[int, set[str]]:
    """Line -> the words in it that are not used."""
    refused = instead(file).keys()
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = {word.lower() for word in WORD.findall(line)}
        words |= {word.removesuffix("s") for word in words}
        words |= {phrase for phrase in PHRASES if phrase in line.lower()}
        if words & refused:
            found[number] = words & refused
    return found


def test_words_that_the_glossary_replaces_do_not_occur() -> None:
    found = []
    for path in files():
        name = str(path.relative_to(ROOT))
        for number, words in not_used(path.read_text(encoding="utf-8"), name).items():
            found += [
                f"{name}:{number}: not {word!r} but {instead(name)[word]}" for word in words - ALLOWED.get(name, set())
            ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["the slaves", "a_topic_of", "TopicOf", "TOPIC_S", "# Whoever comes"])
def test_a_word_is_found_in_names_and_sentences(text: str) -> None:
    assert not_used(f"first\n{text}\n").keys() == {2}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("bridge/leader/leader.py", "self.committed = 1"),
        ("bridge/worker/pool/execute.py", "# Commits early"),
        ("bridge/leader/picture/window.py", "many tickets are blocked"),
        ("bridge/inspect/reasons.py", "its task is paused"),
        ("docs/index.md", "It is passed over."),
    ],
)
def test_a_word_is_found_where_it_has_no_other_use(file: str, text: str) -> None:
    assert not_used(text, file).keys() == {1}


def test_a_word_is_allowed_where_it_has_another_use() -> None:
    assert not not_used("transaction.on_commit(…), while the machine is paused", "bridge/app/task.py")


def test_every_exception_is_needed() -> None:
    for name, words in ALLOWED.items():
        found = set[str]().union(*not_used((ROOT / name).read_text(encoding="utf-8"), name).values())
        assert words <= found, name
