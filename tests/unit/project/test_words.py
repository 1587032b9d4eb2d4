"""Words that the glossary replaces, and words that make riddles, occur in no name, comment or page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("bridge", "routing", "spark", "tasks", "tests", "benchmarks", "docs")
KINDS = (".py", ".lua", ".md", ".html", ".js", ".toml", ".yml")

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
#: File -> the words that it may have, and why.
ALLOWED = {
    # The list of words that are not used.
    "docs/reference/glossary.md": {"slave", "follower", "topic", "entity", "conversation", "poison"},
    # The field of a sentinel's reply.
    "tests/integration/sentinels.py": {"slave"},
}
#: A part of a name, or a word of a sentence: `OrderDesk` and `order_desk` have the same two.
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            # Links lead to folders that are read under their own names.
            if path.suffix in KINDS and path != Path(__file__) and not any(one.is_symlink() for one in path.parents):
                yield path
    yield from ROOT.glob("*.md")


def not_used(text: str) -> dict[int, set[str]]:
    """Line -> the words in it that are not used."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = {word.lower() for word in WORD.findall(line)}
        words |= {word.removesuffix("s") for word in words}
        if words & NOT_USED.keys():
            found[number] = words & NOT_USED.keys()
    return found


def test_words_that_the_glossary_replaces_do_not_occur() -> None:
    found = []
    for path in files():
        name = str(path.relative_to(ROOT))
        for number, words in not_used(path.read_text(encoding="utf-8")).items():
            found += [
                f"{name}:{number}: not {word!r} but {NOT_USED[word]}" for word in words - ALLOWED.get(name, set())
            ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["the slaves", "a_topic_of", "TopicOf", "TOPIC_S", "# Whoever comes"])
def test_a_word_is_found_in_names_and_sentences(text: str) -> None:
    assert not_used(f"first\n{text}\n").keys() == {2}


def test_every_exception_is_needed() -> None:
    for name, words in ALLOWED.items():
        found = set[str]().union(*not_used((ROOT / name).read_text(encoding="utf-8")).values())
        assert words <= found, name
