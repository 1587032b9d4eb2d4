"""The Java of every Spark that a test starts, also as a process of its own.

Data is small: compiling, in Java and of queries, takes many times as long as running, and most of a start is the
loading of some fifteen thousand classes. So these are recorded once for each set-up, before the first ``make long``.
Java then maps the recording, and need not unpack, parse and check the classes.

``python -m tests.spark_java`` makes the recording. Without one, tests do the same, and each start of Spark takes three
seconds of processor time more.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

#: Beside the packages that it was recorded from; ``make`` knows it by this name.
PLACE = Path(sys.prefix) / "spark-classes"
CLASSES = PLACE / "classes.jsa"

_OPTIONS = (
    # A test ends before code is so often run that the better compiler pays.
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms512m -Xmn192m "
    # Nor does it pay to compile what is called 200 times, as Java does: half of the compiled code is hardly used again.
    "-XX:Tier3InvocationThreshold=1000 -XX:Tier3MinInvocationThreshold=500 -XX:Tier3CompileThreshold=4000 "
    # Hadoop starts a program to set the mode of a file, and to read a link. Java starts it without a helper program.
    "-Djdk.lang.Process.launchMechanism=VFORK "
    # Nobody tampered with the classes.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    # The recording is used where it was made to be, and what Java says of one that is not its own is of no use.
    "-XX:ArchiveRelocationMode=0 -Xlog:disable -Xlog:all=error:stderr"
)
#: Queries are not compiled, and nobody reads the plans that Spark writes down for its web pages.
_SPARK = (
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN "
    "-Dspark.sql.ui.explainMode=simple -Dspark.sql.maxPlanStringLength=1"
)


def java_options() -> str:
    """For a Java that runs Spark's own code, also an executor."""
    return f"{_OPTIONS} -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else _OPTIONS


def set_environment() -> None:
    """What this process starts has these options. Before anything starts a Java."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{java_options()} {_SPARK}")
    if CLASSES.exists():
        # It is on the path of classes, and one that has files is not allowed there.
        os.environ.setdefault("SPARK_CONF_DIR", str(_folder("conf")))


def _folder(name: str) -> Path:
    made = PLACE / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def _record() -> None:
    """Start Spark, and write down what it loaded.

    Jobs load a third more. To run them all takes longer than the rest of this, and each would gain half a second.
    """
    import pyspark

    from bridge.spark.job import java_process
    from bridge.spark.job.session import job_session

    CLASSES.unlink(missing_ok=True)
    # The path of classes must be one that is still there when they are used.
    home = _folder("home")
    for part in ("bin", "jars"):
        (home / part).unlink(missing_ok=True)
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    made = PLACE / "classes.new"
    os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_CONF_DIR"] = str(_folder("conf"))
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_OPTIONS} {_SPARK} -XX:ArchiveClassesAtExit={made}"
    # It writes the recording when it ends.
    java_process.JAVA_ENDS_S = 600
    with (
        tempfile.TemporaryDirectory() as folder,
        job_session("a recording", master="local[2]", conf={}, log=Path(folder) / "spark.log") as session,
    ):
        session.range(3).count()
    made.replace(CLASSES)


if __name__ == "__main__":
    _record()
