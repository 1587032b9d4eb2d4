"""The folder of an archive, without Spark and without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError
from bridge.spark.archiving.place import ArchivePlace


@pytest.mark.parametrize("content", ["", "[]", "no json"])
def test_a_damaged_note_of_the_lane_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    place, note = ArchivePlace(str(tmp_path)), tmp_path / "_checkpoints" / "lane.json"
    place.claim("orders", "billing", [], database=0)
    noted = note.read_text()
    note.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        place.claim("orders", "billing", [], database=0)
    assert str(refused.value) == (
        f"cannot read {note}: remove it if this is the archive of stream 'orders', group 'billing' in database 0"
    )
    # As the line says
    note.unlink()
    place.claim("orders", "billing", [], database=0)
    assert note.read_text() == noted
