"""Spark's errors become one line of the project's own errors."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError, InputError, PayloadError, TicketBridgeError
from bridge.spark.job import failures
from bridge.spark.job.failures import errors_in_one_line, one_line
from bridge.spark.wire.replies import RefusedByServer
from bridge.testing.nodes.process import ROOT

PYTHON_TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "somewhere/write_into_data_source.py", line 1, in data_source_write_func
    res = writer.write(iterator)
{name}: {text}

\tat org.apache.spark.sql.execution.python.BasePythonRunner
Caused by: something else
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bridge.routing.errors.PayloadError", PayloadError),
        ("bridge.routing.errors.ConfigurationError", ConfigurationError),
        ("bridge.spark.wire.replies.RefusedByServer", RefusedByServer),
    ],
)
def test_an_error_of_a_task_is_found_in_javas_account_of_it(name: str, kind: type[TicketBridgeError]) -> None:
    error = one_line(RuntimeError(PYTHON_TRACE.format(name=name, text="ticket 'T1' is bad: 2 after 3")))
    assert type(error) is kind
    assert str(error) == "ticket 'T1' is bad: 2 after 3"


NO_URI = "Caused by: java.net.URISyntaxException: Relative path in absolute URI: {}\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (NO_URI.format("rejects:1"), "rejects:1"),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///landing/10:00.csv.  SQLSTATE: KD\n"
            + NO_URI.format(".10:00.csv.crc"),
            "file:///landing/10:00.csv",
        ),
    ],
    ids=["place", "file"],
)
def test_a_name_with_a_colon_is_named_with_what_to_do(text: str, name: str) -> None:
    error = one_line(RuntimeError(text))
    assert isinstance(error, InputError)
    assert str(error) == f"Spark cannot use a name with a colon: rename {name}"


TRACE = 'An error occurred\nTraceback (most recent call last):\n  File "x.py", line 1, in <module>\n'
#: As PySpark tells of a data source that cannot be made: with an error of its own behind the one that counts.
NO_MODULE = (
    f"{TRACE}ModuleNotFoundError: No module named 'redis'\n\nDuring handling of the above exception, another exception "
    f"occurred:\n\n{TRACE}UnboundLocalError: cannot access local variable 'reader'\n"
)
NO_START = "Error from python worker:\n  Traceback:\n    File x\n  SyntaxError: invalid syntax\nPYTHONPATH was:\n  /x\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{TRACE}pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\n",
            "is Python 3.12, and the driver's is 3.11",
        ),
        (
            'x\n: java.io.IOException: Cannot run program "/x/python": error=2, No such',
            "should be '/x/python', which does",
        ),
        (NO_MODULE, "has no module 'redis'"),
        (
            NO_START.replace("SyntaxError: invalid syntax", "ModuleNotFoundError: No module named 'x'"),
            "has no module 'x'",
        ),
        (NO_START, "does not start: SyntaxError: invalid syntax"),
        (
            f"{TRACE}PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18 must be installed.\n",
            "PyArrow >= 18 must",
        ),
    ],
    ids=["version", "not there", "module", "module at start", "start", "package"],
)
def test_a_python_that_cannot_run_tasks_gives_an_error_that_says_what_to_do(text: str, said: str) -> None:
    error = one_line(RuntimeError(text))
    assert type(error) is ConfigurationError
    assert str(error).startswith("the Python that Spark runs tasks with ")
    assert said in str(error)
    assert str(error).endswith(
        "PYSPARK_PYTHON must name one like the driver's, with pyarrow and redis, on every machine"
    )


def test_an_error_without_a_text_is_one_line_too() -> None:
    """Java has ended, and would be asked."""

    class Speechless(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert str(one_line(Speechless())) == "Spark failed: Speechless, and Java has ended"


def test_an_error_of_spark_keeps_its_first_line_only() -> None:
    error = one_line(RuntimeError("\n\nsomething is wrong\n\tat java.lang.Thread\n"))
    assert type(error) is TicketBridgeError
    assert str(error) == "Spark failed: something is wrong"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file /in/1.gz.  SQLSTATE: KD001\n"
            "Caused by: java.io.EOFException: Unexpected end of input stream\n",
            "the input cannot be read: Unexpected end of input stream (/in/1.gz)",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.  SQLSTATE: KD001\n",
            "the input cannot be read: Encountered error while reading file x.",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a b.csv.  SQLSTATE: KD001\n"
            "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected: [A,2,null].\n"
            "[MALFORMED_CSV_RECORD] Malformed CSV record: A,2 SQLSTATE: KD000\n",
            "the input cannot be read: Malformed CSV record: A,2 (file:///in/a b.csv)",
        ),
        (
            "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected: [A,null].\n"
            "[CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'seq' and the value two. SQLSTATE: 2203G\n",
            "the input cannot be read: Cannot parse the field name 'seq' and the value two.",
        ),
        (
            "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected: [null].\n"
            "com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input within/between Object entries\n",
            "the input cannot be read: JsonEOFException: Unexpected end-of-input within/between Object entries",
        ),
    ],
)
def test_an_unreadable_file_is_the_inputs_fault(text: str, said: str) -> None:
    error = one_line(RuntimeError(text))
    assert isinstance(error, InputError)
    assert str(error) == said


OF_A_QUERY = """[STREAM_FAILED] Query [id = 9] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
An error occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python \
Proxy. Return Message: Traceback (most recent call last):
  File "somewhere/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{raised}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 9, runId = 6]
"""
BY_JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o740.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times
\tat org.apache.spark.Something
Caused by: java.io.IOException: Mkdirs failed to create file:/archive/_temporary
\tat org.apache.hadoop.Something"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError: [Errno 28] No space left on device: '/x'", "OSError: [Errno 28] No space left on device: '/x'"),
        ("ValueError: one line\nand another", "ValueError: one line"),
        ("my.own.Trouble: it is bad", "it is bad"),
        (BY_JAVA, "Mkdirs failed to create file:/archive/_temporary"),
    ],
    ids=["os", "lines", "class", "java"],
)
def test_an_error_in_the_middle_of_a_query_says_what_went_wrong_first(raised: str, said: str) -> None:
    assert str(one_line(RuntimeError(OF_A_QUERY.format(raised=raised)))) == f"Spark failed: {said}"


class Caused(Exception):
    """As PySpark keeps what Java names as a cause."""

    def __init__(self, text: str, cause: Exception | None) -> None:
        super().__init__(text)
        self._cause = cause


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "pyspark.errors.exceptions.captured.SparkRuntimeException: [DUPLICATED_MAP_KEY] Duplicate map key a was "
            "found.\nIf you want to remove the duplicated keys, set something. SQLSTATE: 23505",
            "[DUPLICATED_MAP_KEY] Duplicate map key a was found.",
        ),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o8.parquet.\n"
            ": java.lang.IllegalStateException: it is closed\n\tat x",
            "it is closed",
        ),
    ],
    ids=["pyspark", "py4j"],
)
def test_an_error_of_java_below_the_python_of_a_query_is_named(raised: str, said: str) -> None:
    """The innermost cause is the whole traceback of that Python."""
    query = OF_A_QUERY.format(raised=raised)
    proxy = query[query.index("An exception was raised") : query.index(" SQLSTATE: 39000")]
    for failed in (Caused(query, Caused(proxy, None)), RuntimeError(query)):
        assert str(one_line(failed)) == f"Spark failed: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "CSV header does not conform to the schema.\n Header: a, x\n Schema: a, b\nExpected: b but found: x\n"
            "CSV file: file:///in/2.csv\n",
            "the header of file:///in/2.csv has 'x' where 'b' is expected",
        ),
        (
            "Number of column in CSV header is not equal to number of fields in the schema:\n"
            " Header length: 4, schema size: 3\nCSV file: file:///in/2.csv\n",
            "the header of file:///in/2.csv has 4 columns where 3 are expected",
        ),
    ],
    ids=["names", "number"],
)
def test_a_file_with_another_header_is_named_with_what_is_wrong_in_it(text: str, said: str) -> None:
    error = one_line(
        Caused("[STREAM_FAILED] Query [id = 9] terminated", Caused("[FAILED_READ_FILE] x", Caused(text, None)))
    )
    assert isinstance(error, InputError)
    assert str(error) == f"{said}: the files of a folder need the same columns in the same order (or those of --schema)"


PLAN = """
=== Streaming Query ===
Identifier: push [id = 9, runId = 6]

Logical Plan:
+- ~Project [cast(raise_error(USER_RAISED_EXCEPTION, map(errorMessage, concat(refused before anything was written: , \
CASE WHEN isnull(ticket_id#14) THEN a row has no ticket (null) END)))]
"""


@pytest.mark.parametrize(
    ("causes", "kind", "said"),
    [
        (["the disk is full"], TicketBridgeError, "Spark failed: the disk is full"),
        (
            ["[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.", "y is not a Parquet file"],
            InputError,
            "the input cannot be read: is not a Parquet file (x)",
        ),
        (
            ["[USER_RAISED_EXCEPTION] refused before anything was written: a row is bad SQLSTATE: P0001"],
            PayloadError,
            "a row is bad; nothing was written",
        ),
        (
            ["Wrong basePath file:/in for the root path: file:/old/a.csv"],
            ConfigurationError,
            "the checkpoint is of another folder, the one of file:/old/a.csv: file:/in needs another --checkpoint",
        ),
    ],
    ids=["else", "input", "row", "checkpoint"],
)
def test_the_plan_of_a_query_is_no_part_of_what_went_wrong(
    causes: list[str], kind: type[TicketBridgeError], said: str
) -> None:
    failed: Caused | None = None
    for cause in reversed(causes):
        failed = Caused(cause, failed)
    error = one_line(
        Caused(f"[STREAM_FAILED] Query [id = 9] terminated with exception: x SQLSTATE: XXKST{PLAN}", failed)
    )
    assert type(error) is kind
    assert str(error) == said


def test_the_innermost_cause_with_a_text_is_shown() -> None:
    failed = Caused("[STREAM_FAILED] Query [id = 9]", Caused("", Caused("the disk is full\n\tat x", Caused("", None))))
    assert str(one_line(failed)) == "Spark failed: the disk is full"


def test_the_method_that_was_called_in_java_is_not_the_error() -> None:
    text = "An error occurred while calling o8.collect.\n: java.lang.IllegalStateException: it is closed\n\tat x\n"
    assert str(one_line(RuntimeError(text))) == "Spark failed: it is closed"


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("x"), 2), (InputError("x"), 1), (RuntimeError("x"), 1)]
)
def test_a_job_that_fails_ends_with_one_line_and_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, errors_in_one_line(as_json=True):
        raise error
    assert ended.value.code == code
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out.startswith('{"event": "failed", "error": ')


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_job_in_good_order(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def job() -> None:
        try:
            # To this thread: with another one's handler it may come after the end of the job.
            signal.raise_signal(number)
        finally:
            cleaned.append("up")

    # A master that an earlier test ran in this process may have left its own handler of Ctrl-C.
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended, errors_in_one_line():
            job()
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert (ended.value.code, cleaned) == (code, ["up"])
    assert capsys.readouterr().err.startswith("error: stopped")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_file_that_cannot_be_written_is_not_sparks_failure() -> None:
    assert str(one_line(PermissionError(13, "Permission denied", "/archive/x"))) == "Permission denied: /archive/x"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_job_whose_output_has_no_room_ends_without_a_trace(as_json: bool) -> None:
    code = f"""
from bridge.spark.job.failures import errors_in_one_line
with errors_in_one_line(as_json={as_json}):
    print("pushed")
    raise OSError(28, "No space left on device")
"""
    with Path("/dev/full").open("w") as full:
        job = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (job.returncode, job.stderr) == (1, "error: No space left on device\n")


def test_a_name_that_is_no_text_is_shown() -> None:
    code = """
from bridge.spark.job.failures import emit, errors_in_one_line
with errors_in_one_line():
    emit(event="started", file="a\\udcff", stream="\u00fc")
    print("a\\udcff")
"""
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    line, text = job.stdout.splitlines()
    assert json.loads(line) == {"event": "started", "file": "a\udcff", "stream": "\u00fc"}
    assert (text, job.stderr) == ("a\\udcff", "")


PROGRAMS = ("push", "archive", "report", "replay", "generate", "incidents")
#: As processes. They begin alike, so one is enough for a start.
ONE_AND_OTHERS = [PROGRAMS[0], *(pytest.param(job, marks=pytest.mark.long) for job in PROGRAMS[1:])]


def test_all_programs_begin_alike() -> None:
    begin = re.compile(r'^if __name__ == "__main__":\n(?:    .*\n)+\nimport click\n', re.MULTILINE)
    found = [begin.findall((ROOT / "spark" / f"{job}.py").read_text()) for job in PROGRAMS]
    assert len(found[0]) == 1
    assert found == [found[0]] * len(PROGRAMS)


@pytest.mark.parametrize("job", PROGRAMS)
def test_a_program_imports_only_what_python_has_before_it_knows_where_the_bridge_is(job: str) -> None:
    # Else `spark-submit spark/replay.py` fails in a checkout without an installed bridge.
    before, begin, _ = (ROOT / "spark" / f"{job}.py").read_text().partition('\nif __name__ == "__main__":\n')
    assert begin
    names: list[str] = []
    for node in ast.parse(before).body:
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("job", ONE_AND_OTHERS)
def test_ctrl_c_while_a_job_is_imported_leaves_no_trace(job: str, tmp_path: Path) -> None:
    # The first that is imported is one that the user is too impatient for.
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    ended = subprocess.run(
        [sys.executable, "-m", f"bridge.spark.{job}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_an_imported_job_reports_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, errors_in_one_line():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: stopped\n"


def test_a_job_whose_reader_is_gone_ends_without_a_trace() -> None:
    # `… | head -1`: the second line has nobody to go to
    code = """
from bridge.spark.job.failures import emit, errors_in_one_line
with errors_in_one_line(as_json=True):
    emit(event="first")
    input()
    emit(event="second")
"""
    job = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdin is not None
    assert job.stdout is not None
    assert job.stderr is not None
    assert job.stdout.readline() == '{"event": "first"}\n'
    job.stdout.close()
    job.stdin.write("\n")
    job.stdin.close()
    assert job.stderr.read() == "error: the reader of standard output has gone\n"
    assert job.wait(30) == 1
    job.stderr.close()


def test_an_event_is_one_write_so_that_no_other_thread_writes_into_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Out:
        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Out())
    failures.emit(event="pushed", rows=1)
    assert written == ['{"event": "pushed", "rows": 1}\n']


@pytest.mark.parametrize("job", ONE_AND_OTHERS)
def test_a_copy_of_a_program_alone_runs_where_the_package_is_installed(job: str, tmp_path: Path) -> None:
    # As `spark-submit --deploy-mode cluster` takes it to the machine that it runs on.
    copy = tmp_path / f"{job}.py"
    copy.write_bytes((ROOT / "spark" / f"{job}.py").read_bytes())
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, str(copy), "--help"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"{job}.py" in ended.stdout
