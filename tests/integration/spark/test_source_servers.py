"""Writers and readers on a protected server: TLS with a user of its own, and sentinels."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trustme

from bridge.routing.errors import RowsMissing, ServerUnavailable
from bridge.spark import RedisStreamDataSource
from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.reader import RedisStreamReader
from bridge.spark.wire.address import check_server, check_url
from bridge.spark.write.options import parse
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from tests.integration.proxies import Proxy
from tests.integration.sentinels import PASSWORD as DATA_PASSWORD
from tests.integration.sentinels import SENTINEL_PASSWORD, Sentinels, address
from tests.integration.spark.spark_writes import STREAM, batch, cut, log, partition, sequence

PASSWORD = "s/e:c@ret hunter2"
QUOTED = "s%2Fe%3Ac%40ret%20hunter2"


def rows_of(url: str) -> list[tuple[str, str]]:
    """Ticket and ``seq`` of each entry, as the reader has them."""
    made = RedisStreamReader(parse_read({"url": url, "stream": STREAM, "numPartitions": "2"}), default_schema())
    found = pa.Table.from_batches([rows for part in made.partitions() for rows in made.read(part)])
    return [(row["ticket_id"], dict(row["fields"])["seq"]) for row in found.to_pylist()]


@pytest.fixture
def place(authority: trustme.CA, valkey: EmbeddedServer) -> Iterator[Proxy]:
    """TLS in front of a server whose user has a password of awkward characters."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    with valkey.client() as admin, Proxy(valkey.port, tls=context) as proxy:
        admin.execute_command("ACL", "SETUSER", "sparky", "on", "+@all", "~*", f">{PASSWORD}")
        yield proxy
        admin.acl_deluser("sparky")


def test_rows_are_written_and_read_over_tls_by_a_user_whom_no_error_shows(
    authority: trustme.CA, place: Proxy, valkey: EmbeddedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(str(ours))
    trustme.CA().cert_pem.write_to_path(str(other))
    at = f"rediss://sparky:{QUOTED}@{HOST}:{place.port}/0"
    url = f"{at}?ssl_ca_certs={ours}"
    # The certificate is checked without being asked for
    assert check_url(url, called="--url").endswith("&ssl_cert_reqs=required")
    check_server(check_url(url, called="--url"), STREAM)
    # When rows of every size are written, over connections that are cut in the middle, too
    large = batch(*((f"T{row % 7}", row, "x" * (row % 3) * 40_000) for row in range(300)))

    def batches() -> Iterator[pa.RecordBatch]:
        for index, one in enumerate(cut(large, 30)):
            if index == 4:
                place.cut()
            yield one

    options = {"seqColumn": "seq", "fields": "seq,payload", "chunkSize": "20"}
    assert partition(url, batches(), **options).rows == 300
    # Then they are there once, in order, for a reader over TLS, too
    assert sequence(valkey) == list(range(300))
    assert rows_of(url) == [(f"T{row % 7}", str(row)) for row in range(300)]
    # And a server without a trusted certificate, or without TLS, is an error of one line, and gets no data
    errors = []
    for wrong, said in (
        (f"{at}?ssl_ca_certs={other}", "certificate verify failed"),
        (at, "certificate verify failed"),
        (url.replace("rediss:", "redis:").partition("?")[0], "no Redis at redis://"),
        (url.replace("hunter2", "hunter3"), "invalid username-password|WRONGPASS"),
    ):
        checked = check_url(wrong, called="--url")
        for attempt in (check_server, lambda url, _: rows_of(url)):
            with pytest.raises(ServerUnavailable, match=said) as refused:
                attempt(checked, STREAM)
            errors.append(str(refused.value))
    with pytest.raises(ServerUnavailable, match="certificate verify failed") as refused:
        partition(at, iter([log(5)]), maxWait="1")
    errors.append(str(refused.value))
    assert not any("\n" in line for line in errors)
    assert len(sequence(valkey)) == 300
    # And no text that anybody sees has the password
    shown = [repr(RedisStreamDataSource({"url": url})), repr(parse({"url": url})), repr(parse_read({"url": url}))]
    for secret in (PASSWORD, QUOTED, "hunter2"):
        assert secret not in "\n".join([*errors, *shown, caplog.text])


def test_a_write_follows_the_primary_that_sentinels_name_and_so_does_a_read(
    sentinels: Sentinels, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = check_url(address(sentinels), called="--url")
    check_server(url, STREAM)
    first = sentinels.primary()

    def batches(*, change: bool) -> Iterator[pa.RecordBatch]:
        for index, one in enumerate(cut(log(1000), 100)):
            if change and index == 5:
                # When the primary changes in the middle of a write
                sentinels.fail_over()
                # Until the old one is told, which takes the sentinels ten seconds, it takes rows that are lost with it.
                with sentinels.connect(first) as old:
                    old.replicaof(HOST, sentinels.primary())
            yield one

    options = {"seqColumn": "seq", "fields": "seq,payload", "chunkSize": "20"}
    try:
        partition(url, batches(change=True), **options)
    except RowsMissing:
        # A failover may lose what the old primary had acknowledged, rows and guard together: the next attempt has them.
        partition(url, batches(change=False), **options)
    # Then each row is there once, in order, where the primary is now
    assert sentinels.primary() != first
    assert rows_of(url) == [(f"T{row % 7}", str(row)) for row in range(1000)]
    shown = [repr(RedisStreamDataSource({"url": url})), repr(parse({"url": url})), repr(parse_read({"url": url}))]
    for secret in (DATA_PASSWORD, SENTINEL_PASSWORD):
        assert secret not in "\n".join([*shown, caplog.text])
