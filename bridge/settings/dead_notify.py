"""Who is told of dead letters: ``bridge_on_dead_notify``."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bridge.settings.numbers import int_as_float

#: What begins a secret that is written in base64.
BASE64 = "whsec_"
#: Fewest bytes of a secret.
SECRET_BYTES = 16


class DeadNotify(BaseModel):
    """The receiver of notices about dead letters, by HTTP. Without a `url` nobody is told.

    Each master sends at most `rate` requests a minute. What dies meanwhile is in the next one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: str | None = Field(default=None, max_length=2048, description="Where the notices go: http:// or https://.")
    secret: str | None = Field(
        default=None,
        repr=False,
        description="Signs the notices: a text of at least 16 bytes, or `whsec_` and base64. Needed with a `url`.",
    )
    rate: float = Field(default=6.0, ge=0.1, le=600, description="Most requests a minute.")
    payload: bool = Field(
        default=False, description="Whether a notice has the payloads of its messages, as their dead letters do."
    )
    timeout: float = Field(default=10.0, ge=0.1, le=60, description="Seconds within which the receiver must answer.")

    _whole_numbers = field_validator("rate", "timeout", mode="before")(int_as_float)

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or any(char.isspace() or not char.isprintable() for char in value) or not value.isascii():
            raise ValueError("must be http://HOST/… or https://HOST/…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must have no user and no password: the signature says who sent a notice")
        return value

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        if value is not None and len(secret_bytes(value)) < SECRET_BYTES:
            raise ValueError(f"must have at least {SECRET_BYTES} bytes")
        return value

    @model_validator(mode="after")
    def _signed(self) -> DeadNotify:
        if self.url is not None and self.secret is None:
            raise ValueError("must have a secret: with it, the receiver knows who sent a notice")
        return self

    def __bool__(self) -> bool:
        """Whether somebody is told."""
        return self.url is not None


def secret_bytes(text: str) -> bytes:
    """The key of the signature. Raises `ValueError`."""
    if not text.startswith(BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(BASE64), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"begins with {BASE64}, and the rest is no base64") from None
