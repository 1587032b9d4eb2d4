"""Takes the pictures of the pages from a stack at work: ``make screenshots``. Needs Chromium, and a minute or two.

Messages come at a steady rate until the picture of the status is taken, so that the lane is at work on a machine of any
speed. The pictures are checked in, since not every machine has a browser.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
BIN = Path(sys.executable).parent
COLUMNS = 86

#: Fewer than the history keeps: the report must have all of them.
EVENTS = 24_000
#: They are pushed so many at once, so many seconds apart.
BURST, APART_S = 1500, 1.5
#: Bursts before the first picture.
FIRST_BURSTS = 3
#: Seconds within which a busy machine has done all events.
DONE_WITHIN_S = 600.0


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(*arguments: str, env: dict[str, str], cwd: Path | str = ROOT) -> None:
    """Runs a program of the environment to its end."""
    subprocess.run([str(BIN / arguments[0]), *arguments[1:]], cwd=cwd, env=env, check=True)


def on_a_terminal(*arguments: str, env: dict[str, str], lines: int = 40) -> str:
    """What a program prints on a terminal, colours included."""
    main, other = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(lines), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [str(BIN / arguments[0]), *arguments[1:]], cwd=ROOT, env={**env, **size}, stdout=other, stderr=other
    )
    os.close(other)
    seen = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        try:
            seen += os.read(main, 65_536)
        except OSError:  # the program has closed the terminal
            break
    process.wait()
    os.close(main)
    return seen.decode().replace("\r\n", "\n")


def terminal_picture(text: str, title: str, to: Path) -> None:
    """Output of a terminal as SVG, without the fonts that would have to come from the network."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.rstrip()))
        svg = console.export_svg(title=title, unique_id="status")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    to.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), "utf-8")


def page_picture(url: str, to: Path, width: int, height: int) -> None:
    """A page as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("error: no Chromium found; install it (Debian, Ubuntu: the package chromium)")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=8000",
             # Else a busy machine may leave a part of the page without paint.
             "--run-all-compositor-stages-before-draw", f"--screenshot={to}", url],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip


def answers(url: str) -> bool:
    """Whether a page is served there."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (an address of ours)
            return True
    except OSError:
        return False


def wait_for(url: str) -> None:
    """Waits until a page is served."""
    until = time.monotonic() + 60
    while not answers(url):
        if time.monotonic() > until:
            sys.exit(f"error: {url} did not answer within a minute")
        time.sleep(0.5)


class Feed:
    """Pushes the events at a steady rate from a thread of its own; a context manager that waits for the last one."""

    def __init__(self, events: Path, env: dict[str, str]) -> None:
        self._header, *self._rows = events.read_text("utf-8").splitlines(keepends=True)
        self._process = subprocess.Popen(
            [str(BIN / "bridge"), "push", "--format", "csv", "-"],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=sys.stderr, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._push, daemon=True)
        #: Set when the first messages are in the stream, and more will come.
        self.has_begun = threading.Event()

    def _push(self) -> None:
        assert self._process.stdin is not None
        with self._process.stdin as rows:
            rows.write(self._header)
            for number, start in enumerate(range(0, len(self._rows), BURST)):
                rows.writelines(self._rows[start : start + BURST])
                rows.flush()
                if number == FIRST_BURSTS:
                    self.has_begun.set()
                time.sleep(APART_S)

    @property
    def is_over(self) -> bool:
        """Whether all events were given to `bridge push`."""
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.terminate()
        elif self._process.wait():
            sys.exit("error: the events could not be pushed")


#: What a look at a lane at work has: messages that wait, others in flight, and workers that have said what they hold.
AT_WORK = re.compile(r"^waiting +[1-9].*^in flight +[1-9].*\bprefork +1 +[1-9]\d* +[1-9]", re.MULTILINE | re.DOTALL)


def status_at_work(feed: Feed, env: dict[str, str]) -> str:
    """The output of `bridge status` at a moment when the lane is at work."""
    while not feed.is_over:
        seen = on_a_terminal("bridge", "status", env=env)
        if AT_WORK.search(seen):
            return seen
    sys.exit("error: no look found the lane at work; make BURST larger")


def wait_until_done(env: dict[str, str]) -> None:
    """Waits until every message is done or dead: a report of half a run shows a queue, and no lane."""
    until = time.monotonic() + DONE_WITHIN_S
    while True:
        command = [str(BIN / "bridge"), "status", "--json"]
        status = json.loads(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True).stdout)
        if not sum(status[state] for state in ("unread", "waiting", "in_flight", "awaiting_retry")):
            return
        if time.monotonic() > until:
            sys.exit(f"error: the lane was not done within {DONE_WITHIN_S:g} s")
        time.sleep(1)


def main() -> None:
    """Starts a stack, gives it work, and takes the pictures: one while it works, the others when it is done."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        port, flower = free_port(), free_port()
        env = {**os.environ, "BRIDGE_BROKER_URL": f"redis://127.0.0.1:{port}/0"}
        stack = subprocess.Popen(
            [str(BIN / "bridge"), "up", "--port", str(port), "--flower-port", str(flower), "--dir", f"{folder}/stack"],
            cwd=ROOT, env=env, stdout=sys.stderr,
        )  # fmt: skip
        try:
            wait_for(f"http://127.0.0.1:{flower}/")
            run("python", "-m", "spark.generate", f"{folder}/events.csv", "--events", str(EVENTS), env=env)
            with Feed(Path(folder, "events.csv"), env) as feed:
                feed.has_begun.wait()
                terminal_picture(status_at_work(feed, env), "bridge status --watch", PICTURES / "status.svg")
            wait_until_done(env)
            # Under load Flower may take longer than a browser waits.
            page_picture(f"http://127.0.0.1:{flower}/tasks", PICTURES / "flower.png", 1640, 640)
            run("bridge", "spark", "archive", f"{folder}/archive", "--only", "history", "--only", "dead", env=env)
            # From there, so that the page names the archive and not a temporary folder.
            run("bridge", "spark", "report", "archive", "--out", f"{folder}/report", env=env, cwd=folder)
            page_picture(f"file://{folder}/report/report.html", PICTURES / "report.png", 1200, 1120)
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(60)


if __name__ == "__main__":
    main()
