"""Sends a signed text by HTTP POST, in the form of Standard Webhooks: three headers, and an HMAC-SHA256.

The signature is over ``<id>.<timestamp>.<body>``. A receiver compares it, and refuses an old timestamp. Redirects are
not followed: an answer must not choose who gets the text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from bridge.settings.dead_notify import secret_bytes

if TYPE_CHECKING:
    from bridge.settings.dead_notify import DeadNotify

#: The headers.
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


class WebhookFailed(Exception):
    """The receiver did not answer with 2xx. The text says why, in a few words. ``status``: its answer; 0: none."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Webhook:
    """One receiver."""

    def __init__(self, receiver: DeadNotify) -> None:
        assert receiver.url is not None
        assert receiver.secret is not None
        self._url = receiver.url
        self._key = secret_bytes(receiver.secret)
        self._timeout_s = receiver.timeout
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, id_: str, timestamp: int, text: bytes) -> None:
        """Sends ``text``. ``timestamp``: Unix time in s. Raises `WebhookFailed`."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "ticket-bridge",
            ID: id_,
            TIMESTAMP: str(timestamp),
            SIGNATURE: f"v1,{signature(self._key, id_, timestamp, text)}",
        }
        request = urllib.request.Request(self._url, data=text, headers=headers, method="POST")  # noqa: S310 (http only)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                status = response.status
        except urllib.error.HTTPError as exc:
            status = exc.code
            exc.close()
        except urllib.error.URLError as exc:
            raise WebhookFailed(f"no answer: {exc.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise WebhookFailed(f"no answer: {exc or type(exc).__name__}") from None
        if not 200 <= status < 300:
            raise WebhookFailed(f"the receiver answered {status}", status)


def signature(key: bytes, id_: str, timestamp: int, text: bytes) -> str:
    """The signature of ``text``, in base64."""
    signed = f"{id_}.{timestamp}.".encode() + text
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
