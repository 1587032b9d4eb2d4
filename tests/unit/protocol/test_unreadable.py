"""Values in the lane's hashes that nobody can read."""

from __future__ import annotations

import logging

import pytest

from bridge.protocol import unreadable


def test_each_value_is_logged_once_with_its_key_and_field(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unreadable, "_said", set())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            for value in (b"5", b"x\ny", b"x\nz"):
                unreadable.read_all("lane:known", {b"shop.charge": value}, lambda _field, text: int(text))
    assert [record.getMessage() for record in caplog.records] == [
        f"the field 'shop.charge' of the key lane:known cannot be read and is skipped: 'x {end}'; "
        "delete it if no other version needs it"
        for end in "yz"
    ]
