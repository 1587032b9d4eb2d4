"""The options of the data source, the address of the server, and the columns that they name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.routing.connection import client
from bridge.routing.errors import ConfigurationError, ServerTooOld, ServerUnavailable
from bridge.spark import RedisStateDataSource, RedisStreamDataSource
from bridge.spark.wire.address import _check_fit, check_url, connect, without_secrets
from bridge.spark.wire.options import nearest
from bridge.spark.write.layout import Layout
from bridge.spark.write.limits import MAX_FIELDS
from bridge.spark.write.options import WriteOptions, parse, parse_streaming

SECRET = "hunter2"


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


LOG = schema(ticket_id=StringType(), seq=LongType(), task=StringType(), payload=StringType())


def test_options_are_known_in_any_case() -> None:
    options = parse({"CHUNKSIZE": "7", "keycolumn": "k", "Url": "redis://h:1/2"})
    assert (options.chunk_size, options.key_column, options.url) == (7, "k", "redis://h:1/2")


def test_no_option_is_needed() -> None:
    assert parse({}) == WriteOptions()


def test_the_names_in_an_error_are_on_one_line() -> None:
    assert nearest("seq", ["seq\r"]) == r"; did you mean seq\x0d?"
    assert nearest("other", ["a\nb", "c\x1b[1m"]) == r"; known are a\x0ab, c\x1b[1m"


@pytest.mark.parametrize(
    ("given_name", "said"),
    [("chunksise", "did you mean chunkSize?"), ("keyCol", "did you mean keyColumn?"), ("zzz", "known are url, stream")],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(given_name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {given_name} is unknown") as refused:
        parse({given_name: "1"})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunkSize", "0"),
        ("chunkSize", "many"),
        ("window", "-1"),
        ("maxPayload", "1.5"),
        ("stream", " "),
        ("fields", "a,,b"),
        ("orderBy", "a,a"),
        ("url", "localhost:6379"),
        ("url", "sentinel://h1,h2/0"),
        ("chunkSize", "10001"),
        ("idempotence", "exactly"),
        ("highWater", "0"),
        ("maxWait", "soon"),
        ("guardTtl", "1200"),
        ("guardTtl", "10000000000"),
        ("runId", " "),
    ],
)
def test_an_impossible_value_is_refused_in_one_line_that_names_the_option(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as refused:
        parse({name: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"idempotence": "ticket"}, "idempotence=ticket needs seqColumn"),
        ({"idempotence": "none", "runId": "r"}, "runId has no meaning with idempotence=none"),
        ({"startingId": "0"}, "option startingId is for reading"),
        ({"guardTtl": "100", "maxWait": "50"}, r"guardTtl \(100\) must be more than twice maxWait \(50\)"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given_options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(given_options)


def test_a_streaming_write_is_named_by_its_query() -> None:
    with pytest.raises(ConfigurationError, match="runId is for batch writes"):
        parse_streaming({"runId": "r"})
    # What Spark hands to every sink is no option of ours
    assert parse_streaming({"checkpointLocation": "/x"}) == WriteOptions()


def test_a_tls_url_that_says_nothing_of_certificates_has_them_checked() -> None:
    assert parse({"url": "rediss://h:1/0"}).url == "rediss://h:1/0?ssl_cert_reqs=required"


@pytest.mark.parametrize(
    "url",
    [
        f"sentinel://user:{SECRET}@h1:1,h2/0?master_name=m&sentinel=%7B%22password%22%3A%22{SECRET}%22%7D",
        f"redis://user:{SECRET}@host:6379/0",
        f"redis://:{SECRET}@host",
        f"rediss://host:1/0?password={SECRET}",
        f"unix://user:{SECRET}@/run/redis.sock?password={SECRET}",
    ],
)
def test_a_shown_url_holds_no_secret(url: str) -> None:
    assert SECRET not in without_secrets(url)
    options = parse({"url": url})
    assert SECRET not in repr(options) + repr(RedisStreamDataSource({"url": url}))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}/x@host:6379/0",
        f"redis://:p@{SECRET}/x@host:6379/0",
        f"redis://:p@{SECRET}?x@host",
        f"redis://:{SECRET}?x@host",
        f"redis://:{SECRET}#x@host",
        f"redis://host:{SECRET}/0",
        f"redis://:{SECRET}@host/nodb?db=x",
        f"http://:{SECRET}@host",
        f"user:{SECRET}@host",
        SECRET,
        "",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--url") as refused:
        check_url(url, called="--url")
    assert SECRET not in str(refused.value)
    # Nor is it in what shows the URL before it was refused
    assert SECRET not in repr(RedisStreamDataSource({"url": url})) + without_secrets(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?bogus=1", "has an unknown option: bogus"),
        ("redis://h?ssl_cert_reqs=none", "has an unknown option: ssl_cert_reqs"),
        ("sentinel://h:1/0?master_name=m&bogus=1", "has an unknown option: bogus"),
        ("rediss://h?ssl_cert_reqs=perhaps", "ssl_cert_reqs must be required, optional or none"),
        ("redis://h/1x", "names a database that is not a number"),
        ("redis://h?socket_timeout=soon", "is not a Redis URL"),
    ],
)
def test_the_options_of_a_url_are_checked_before_connecting(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--url:? {said}"):
        check_url(url, called="--url")


def test_a_scheme_may_be_written_in_any_case() -> None:
    assert check_url("REDIS://h:1/2", called="--url") == "redis://h:1/2"
    assert check_url("Sentinel://h:1/0?master_name=m", called="--url") == "sentinel://h:1/0?master_name=m"


@pytest.mark.parametrize("url", ["redis://h?protocol=3&decode_responses=True", "sentinel://h:1/0?master_name=m"])
def test_replies_are_bytes_whatever_options_a_url_has(url: str) -> None:
    kwargs = client(url).connection_pool.connection_kwargs
    assert (kwargs["protocol"], kwargs["decode_responses"]) == (2, False)


def test_an_unreachable_server_is_one_line_without_the_password() -> None:
    # Port 1 has no server.
    with pytest.raises(ServerUnavailable, match=r"no Redis at redis://127\.0\.0\.1:1/0: ") as refused:
        connect(f"redis://:{SECRET}@127.0.0.1:1/0")
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_columns_but_key_and_sequence_are_fields_unless_named() -> None:
    assert Layout.of(LOG, parse({"seqColumn": "seq"})) == Layout("ticket_id", ("task", "payload"), "seq")
    assert Layout.of(LOG, parse({"fields": "payload"})).fields == ("payload",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keyColumn": "ticket"}, "keyColumn: there is no column 'ticket'; did you mean ticket_id?"),
        ({"seqColumn": "seqq"}, "seqColumn: there is no column 'seqq'; did you mean seq?"),
        ({"seqColumn": "task"}, "seqColumn: 'task' is string, not a whole number"),
        ({"fields": "payload,tasks"}, "fields: there is no column 'tasks'"),
        ({"orderBy": "time"}, "orderBy: there is no column 'time'"),
        ({"orderBy": "tags", "fields": "payload"}, "orderBy: 'tags' is array, which has no order"),
        ({"fields": "ticket_id,payload"}, "fields: 'ticket_id' is written from keyColumn"),
    ],
)
def test_a_column_that_cannot_serve_is_refused_with_its_option(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Layout.of(StructType([*LOG.fields, StructField("tags", ArrayType(StringType()))]), parse(options))
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", [TimestampType(), ArrayType(StringType()), schema(a=StringType())], ids=str)
def test_a_column_without_one_text_is_refused(kind: DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"column 'x' is .* make it a string"):
        Layout.of(schema(ticket_id=StringType(), x=kind), parse({}))


@pytest.mark.parametrize("kind", [FloatType(), DoubleType(), DecimalType(10, 2)], ids=str)
def test_a_number_with_a_fraction_is_sent_and_names_no_ticket(kind: DataType) -> None:
    with pytest.raises(ConfigurationError, match="keyColumn: 'ticket_id' holds numbers with fractions"):
        Layout.of(schema(ticket_id=kind, x=StringType()), parse({}))
    assert Layout.of(schema(ticket_id=DecimalType(38, 0), x=kind), parse({})).fields == ("x",)


def test_a_row_has_no_more_fields_than_a_script_can_add() -> None:
    wide = schema(ticket_id=StringType(), **{f"c{number}": StringType() for number in range(MAX_FIELDS + 1)})
    with pytest.raises(ConfigurationError, match=f"a row has {MAX_FIELDS + 1} fields, at most {MAX_FIELDS}"):
        Layout.of(wide, parse({}))


def test_a_column_that_a_dataframe_has_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is a column 'seq' twice: rename or drop one of them"):
        Layout.of(StructType([*LOG.fields, StructField("seq", StringType())]), parse({"seqColumn": "seq"}))


def test_a_stream_is_never_overwritten() -> None:
    with pytest.raises(ConfigurationError, match="appended to"):
        RedisStreamDataSource({"stream": "s"}).writer(LOG, overwrite=True)


@pytest.mark.parametrize("source", [RedisStreamDataSource, RedisStateDataSource])
@pytest.mark.parametrize(
    "given",
    [{}, {"checkpointlocation": "/c"}, {"provider": "redisstream", "option.url": "redis://h", "url": "redis://h"}],
    ids=["batch", "stream", "columns"],
)
def test_a_table_which_hands_over_no_options_does_not_mean_the_local_server(
    source: type[RedisStreamDataSource | RedisStateDataSource], given: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="Spark hands over none of a table's options: name url and stream"):
        source(given)


def test_importing_the_package_does_not_load_pyspark() -> None:
    code = "import spark, sys; assert 'pyspark' not in sys.modules; spark.RedisStreamDataSource.name()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("said", ["", "unknown", "7", "6.2"])
def test_a_server_that_hides_its_version_is_taken(said: str) -> None:
    _check_fit("redis://h", {"redis_version": said} if said else {})
    with pytest.raises(ServerTooOld):
        _check_fit("redis://h", {"redis_version": "6.0.20"})
