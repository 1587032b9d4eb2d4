"""Who may call, and what: bearer tokens, each with the verbs and the subscriptions that it may use.

Tokens come from a file (``--http-tokens``) or the environment variable BRIDGE_HTTP_TOKENS, as a JSON list::

    [{"name": "billing", "token": "…", "verbs": ["consume"], "subscriptions": ["billing"]}]

``sha256`` (hexadecimal, of the token) may take the place of ``token``. ``"*"`` means all verbs, or all subscriptions.
A token is compared by its SHA-256, with all of them and in constant time, so the time of an answer says nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from celery.utils.log import get_logger

from bridge.routing.errors import ConfigurationError
from bridge.routing.text import printable

logger = get_logger(__name__)

VARIABLE = "BRIDGE_HTTP_TOKENS"
#: Fewest characters of a token. 128 random bits have 22 characters of base64, or 32 hexadecimal digits.
MIN_TOKEN = 22
MAX_TOKEN = 512
#: Most tokens. A call compares with each of them.
MAX_TOKENS = 1000
ALL = "*"
_HEX = re.compile(r"[0-9a-f]{64}")


class Verb(StrEnum):
    """What a call does."""

    PUSH = "push"
    CONSUME = "consume"
    READ = "read"


@dataclass(frozen=True)
class Caller:
    """Who calls. ``subscriptions``: None is all of them."""

    name: str
    verbs: frozenset[Verb]
    subscriptions: frozenset[str] | None = None

    def may(self, verb: Verb, subscription: str | None = None) -> bool:
        """Whether the caller may use ``verb``, and for ``subscription`` (None: for one at least)."""
        if verb not in self.verbs:
            return False
        return subscription is None or self.subscriptions is None or subscription in self.subscriptions


#: The caller where no token is set.
ANYBODY = Caller("anybody", frozenset(Verb))


@dataclass(frozen=True)
class _Token:
    digest: bytes
    caller: Caller


class Access:
    """The tokens of a server. Without any, everybody may do everything."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._tokens = self._read()

    @property
    def is_open(self) -> bool:
        """Whether no token is set."""
        return not self._tokens

    def reload(self) -> None:
        """Reads the file again. A file that cannot be used leaves the tokens as they are, and is logged."""
        try:
            found = self._read()
        except ConfigurationError as exc:
            logger.error("the tokens stay as they were: %s", exc)
            return
        if bool(found) != bool(self._tokens):
            logger.error("the tokens stay as they were: the first token, and the last one, need a restart")
            return
        self._tokens = found
        logger.info("read %d tokens", len(found))

    def caller(self, token: str | None) -> Caller | None:
        """Who calls with ``token``; None: it is missing or wrong."""
        if not self._tokens:
            return ANYBODY
        if token is None or len(token) > MAX_TOKEN:
            return None
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        found = None
        for one in self._tokens:
            if hmac.compare_digest(one.digest, digest):
                found = one.caller
        return found

    def _read(self) -> Sequence[_Token]:
        if self._file is not None:
            return _parse(_text_of(self._file), f"the file {self._file} of --http-tokens")
        text = os.environ.get(VARIABLE, "")
        # A compose file passes a variable on that is not set.
        return () if not text.strip() else _parse(text, f"the environment variable {VARIABLE}")


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            raw = opened.read(4 * 1024 * 1024)
    except OSError as exc:
        raise ConfigurationError(f"--http-tokens: cannot read {file}: {exc.strerror}") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s can be read by other users: chmod 600 %s", file, file)
    return raw.decode(errors="replace")


def _parse(text: str, where: str) -> Sequence[_Token]:
    """The tokens of a JSON text. Raises `ConfigurationError`, which never shows a token."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where} is not JSON: {FORM}") from None
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_TOKENS:
        raise ConfigurationError(f"{where} must be a list of 1 to {MAX_TOKENS} tokens: {FORM}")
    tokens = [_token(entry, f"{where}: token {number}") for number, entry in enumerate(entries, 1)]
    for what, values in (("name", [one.caller.name for one in tokens]), ("token", [one.digest for one in tokens])):
        if len(set(values)) < len(values):
            raise ConfigurationError(f"{where}: two tokens have the same {what}")
    return tokens


#: The form of the tokens, for error messages.
FORM = '[{"name": "…", "token": "…", "verbs": ["consume"], "subscriptions": ["…"]}]'


def _token(entry: Any, where: str) -> _Token:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where} must be an object: {FORM}")
    unknown = sorted(map(str, entry.keys() - {"name", "token", "sha256", "verbs", "subscriptions"}))
    if unknown:
        raise ConfigurationError(f"{where} has an unknown member {printable(unknown[0])[:80]!r}: {FORM}")
    name = entry.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ConfigurationError(f"{where} must have a name, for the log: {FORM}")
    where = f"{where} ({printable(name)})"
    verbs = _names(entry, "verbs", where)
    if wrong := [one for one in verbs if one not in (*Verb, ALL)]:
        raise ConfigurationError(f"{where}: verbs are {', '.join(Verb)} and *, not {printable(wrong[0])[:80]!r}")
    subscriptions = _names(entry, "subscriptions", where)
    caller = Caller(
        name,
        frozenset(Verb if ALL in verbs else map(Verb, verbs)),
        None if ALL in subscriptions else frozenset(subscriptions),
    )
    return _Token(_digest(entry, where), caller)


def _names(entry: dict[str, Any], member: str, where: str) -> Iterable[str]:
    found = entry.get(member)
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise ConfigurationError(f'{where} must have {member}, a list of names; ["*"] means all')
    return found


def _digest(entry: dict[str, Any], where: str) -> bytes:
    token, digest = entry.get("token"), entry.get("sha256")
    if (token is None) == (digest is None):
        raise ConfigurationError(f"{where} must have either token or sha256")
    if digest is not None:
        if not isinstance(digest, str) or not _HEX.fullmatch(digest.lower()):
            raise ConfigurationError(f"{where}: sha256 must be the 64 hexadecimal digits of the token's SHA-256")
        return bytes.fromhex(digest)
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"{where}: a token must be printable ASCII without spaces")
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        raise ConfigurationError(
            f"{where}: a token must have {MIN_TOKEN} to {MAX_TOKEN} characters, and this one has {len(token)}: make "
            "one with `openssl rand -base64 24`"
        )
    return hashlib.sha256(token.encode()).digest()
