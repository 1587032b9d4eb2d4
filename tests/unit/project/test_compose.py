"""docker-compose.yml and the Dockerfile, as far as they can be checked where no engine runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.roles import ProcessMaster, ProcessWorker

ROOT = Path(__file__).parents[3]
Service = dict[str, Any]

LONG_RUNNING = {"valkey", "master", "http", "worker", "flower"}
PYTHON_SERVICES = {"master", "http", "worker", "flower", "spark"}
BROKER = "redis://valkey:6379/0"

KEYS_OF_A_SERVICE = {
    "image", "build", "command", "environment", "depends_on", "restart", "init", "cap_drop", "security_opt", "volumes",
    "ports", "stop_grace_period", "healthcheck", "deploy", "profiles",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
RESTARTS = {"no", "always", "on-failure", "unless-stopped"}
DURATION = re.compile(r"(\d+(us|ms|s|m|h))+")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


class TestEveryService:
    def test_all_of_the_stack_is_there(self, services: dict[str, Service]) -> None:
        assert set(services) == LONG_RUNNING | {"spark"}

    def test_uses_only_keys_that_are_understood(self, compose: dict[str, Any], services: dict[str, Service]) -> None:
        assert {key for key in compose if not key.startswith("x-")} <= {"name", "services", "volumes"}
        for name, service in services.items():
            assert set(service) <= KEYS_OF_A_SERVICE, name

    def test_has_an_image_and_a_command_of_strings(self, services: dict[str, Service]) -> None:
        for name, service in services.items():
            assert service.get("image"), name
            # A list, so that no shell is between, and signals reach the program.
            assert isinstance(service["command"], list), name
            assert all(isinstance(part, str) for part in service["command"]), name

    def test_waits_only_for_what_exists_and_can_become_true(self, services: dict[str, Service]) -> None:
        for name, service in services.items():
            for other, wanted in service.get("depends_on", {}).items():
                assert other in services, name
                assert wanted["condition"] in CONDITIONS, name
                if wanted["condition"] == "service_healthy":
                    assert "healthcheck" in services[other], name

    def test_is_restarted_unless_it_is_a_job(self, services: dict[str, Service]) -> None:
        for name, service in services.items():
            assert service["restart"] in RESTARTS, name
            assert (service["restart"] == "unless-stopped") == (name in LONG_RUNNING), name

    def test_that_runs_long_has_a_health_check_that_fits_its_interval(self, services: dict[str, Service]) -> None:
        for name in LONG_RUNNING:
            check = services[name]["healthcheck"]
            assert check["test"][0] in {"CMD", "CMD-SHELL"}, name
            assert check["test"][0] == "CMD" or len(check["test"]) == 2, name
            assert check["retries"] >= 1, name
            for key in ("interval", "timeout", "start_period"):
                assert DURATION.fullmatch(check[key]), (name, key)
            assert _seconds(check["timeout"]) < _seconds(check["interval"]), name

    def test_publishes_ports_on_this_machine_only(self, services: dict[str, Service]) -> None:
        for name, service in services.items():
            for port in service.get("ports", []):
                assert port.startswith("127.0.0.1:"), name

    def test_mounts_only_declared_volumes_or_folders_of_the_checkout(
        self, compose: dict[str, Any], services: dict[str, Service]
    ) -> None:
        for name, service in services.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                assert source in compose["volumes"] or source.startswith("./"), name

    def test_that_can_be_scaled_has_no_name_or_port_of_its_own(self, services: dict[str, Service]) -> None:
        for name in ("master", "worker"):
            assert not {"container_name", "hostname", "ports"} & set(services[name]), name
        assert services["master"]["deploy"]["replicas"] == 2

    def test_services_of_python_run_unprivileged_with_the_brokers_address(self, services: dict[str, Service]) -> None:
        for name in PYTHON_SERVICES:
            assert services[name]["environment"]["BRIDGE_BROKER_URL"] == BROKER, name
            assert services[name]["cap_drop"] == ["ALL"], name
            # A worker's first process is the bridge's own init.
            assert services[name]["init"] is (name != "worker"), name

    def test_images_of_python_have_spark_only_where_it_runs(self, services: dict[str, Service]) -> None:
        built = {name: (services[name]["image"], services[name]["build"]["target"]) for name in PYTHON_SERVICES}
        small = ("ticket-bridge:local", "bridge")
        assert built.pop("spark") == ("ticket-bridge-spark:local", "spark")
        assert set(built.values()) == {small}


class TestCommands:
    """The commands are those of the tests and pages, so that a container is not another way to start the bridge."""

    def test_a_worker_is_started_as_in_the_tests(self, services: dict[str, Service], tmp_path: Path) -> None:
        node = ProcessWorker("worker", app="tasks", broker_url=BROKER, log_file=tmp_path / "log", arguments=())
        init = ["python", "-m", "bridge.worker.init"]
        assert services["worker"]["command"] == init + without_python(node.command)
        assert find_spec(init[-1]) is not None

    def test_a_master_is_started_as_in_the_tests(self, services: dict[str, Service], tmp_path: Path) -> None:
        node = ProcessMaster("master", app="tasks", broker_url=BROKER, log_file=tmp_path / "log")
        assert services["master"]["command"] == without_python(node.command)

    def test_flower_is_celery_s_own_command(self, services: dict[str, Service]) -> None:
        assert services["flower"]["command"] == shlex.split(
            "celery -A tasks flower --port=5555 --tasks_columns=name,uuid,state,args,received,runtime,worker"
        )
        assert services["flower"]["ports"][0].endswith(":5555")

    def test_the_spark_job_s_command_is_one_that_it_accepts(self, services: dict[str, Service]) -> None:
        from bridge.spark.push import main

        command = services["spark"]["command"]
        assert command[:3] == ["python", "-m", "bridge.spark.push"]
        # A new user gets the defaults of ${NAME:-default}.
        options = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", option) for option in command[3:]]
        assert main.make_context("bridge.spark.push", options, resilient_parsing=False).params["url"] == BROKER
        assert services["spark"]["profiles"] == ["spark"]
        # The image has the log.
        [made] = re.findall(
            r"^RUN python -m bridge.spark.generate (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
        )
        assert made in command[3].split(":-")[1]

    def test_the_bridge_s_commands_exist(self, services: dict[str, Service]) -> None:
        cli = pytest.importorskip("bridge.cli.main").cli
        for name in ("master", "http"):
            program, app_option, app, command, *options = services[name]["command"]
            assert (program, app_option, app) == ("bridge", "-A", "tasks")
            found = cli.get_command(click.Context(cli), command)
            assert found is not None
            found.make_context(command, options, resilient_parsing=False, parent=click.Context(cli))

    def test_a_port_is_only_there_for_who_asks_for_it(self, services: dict[str, Service]) -> None:
        assert services["http"]["profiles"] == ["http"]
        assert services["http"]["environment"]["BRIDGE_HTTP_TOKENS"] == "${BRIDGE_HTTP_TOKENS:-}"
        assert services["http"]["command"][-1].endswith(services["http"]["ports"][0].rpartition(":")[2])

    def test_valkey_has_the_settings_of_the_embedded_server(self, services: dict[str, Service], tmp_path: Path) -> None:
        program, *options = services["valkey"]["command"]
        assert program == "valkey-server"
        in_compose = dict(zip(options[::2], options[1::2], strict=True))
        embedded = EmbeddedServer(data_dir=tmp_path)._command(Path("valkey-server"))
        settings = dict(zip(embedded[1::2], embedded[2::2], strict=True))
        of_the_place = {"--bind", "--port", "--dir", "--daemonize", "--logfile"}
        # An embedded server has the machine's values.
        assert in_compose.pop("--maxmemory") == "${VALKEY_MAXMEMORY:-1gb}"
        assert in_compose == {name: value for name, value in settings.items() if name not in of_the_place}
        assert services["valkey"]["volumes"] == ["valkey-data:/data"]


class TestDockerfile:
    @pytest.fixture
    def steps(self) -> list[tuple[str, str]]:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return [(command[0].upper(), command[1]) for command in (line.split(maxsplit=1) for line in lines)]

    def test_processes_run_as_an_ordinary_user(self, steps: list[tuple[str, str]]) -> None:
        [made] = [number for number, (verb, rest) in enumerate(steps) if verb == "RUN" and "useradd --uid" in rest]
        stages = [number for number, (verb, _) in enumerate(steps) if verb == "FROM"]
        for name in ("spark", "bridge"):
            [at] = [number for number in stages if steps[number][1] == f"app AS {name}"]
            assert made < at
            end = min((number for number in stages if number > at), default=len(steps))
            assert [rest for verb, rest in steps[at:end] if verb == "USER"] == ["bridge"]
        # The default is the small image.
        assert steps[stages[-1]][1] == "app AS bridge"

    def test_every_stage_is_on_the_documented_python(self, steps: list[tuple[str, str]]) -> None:
        named = {rest.split()[-1] for verb, rest in steps if verb == "FROM"}
        assert {rest.split()[0] for verb, rest in steps if verb == "FROM"} - named == {"python:3.11-slim"}

    def test_everything_copied_exists_and_is_let_through(self, steps: list[tuple[str, str]]) -> None:
        ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        let_through = {line[1:].rstrip("/") for line in ignored if line.startswith("!")}
        copied = {rest.split()[0] for verb, rest in steps if verb == "COPY" and not rest.startswith("--from")}
        assert copied == let_through
        assert ignored[1] == "*"
        assert [name for name in sorted(copied) if not (ROOT / name).exists()] == []

    def test_the_versions_are_the_locked_ones(self, steps: list[tuple[str, str]]) -> None:
        installs = [rest for verb, rest in steps if verb == "RUN" and "pip install" in rest]
        own = "python -m pip install --no-deps --no-build-isolation ."
        assert installs == [
            "python -m pip install --require-hashes -r requirements-image.lock",
            own,
            "python -m pip install --require-hashes -r requirements-image-spark.lock",
            own,
        ]


def test_docker_s_own_client_accepts_the_file(tmp_path: Path) -> None:
    """With the compose plugin if there is one, else with `docker stack config`, which needs no engine but lacks two
    keys.
    """
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("no docker client here; the structural checks above stand alone")
    file = ROOT / "docker-compose.yml"
    if _run([docker, "compose", "version"]).returncode == 0:
        checked = _run([docker, "compose", "-f", str(file), "--profile", "spark", "config", "-q"])
    else:
        reduced = tmp_path / "docker-compose.yml"
        reduced.write_text(_for_docker_stack(yaml.safe_load(file.read_text(encoding="utf-8"))), encoding="utf-8")
        checked = _run([docker, "stack", "config", "-c", str(reduced)])
    assert checked.returncode == 0, checked.stderr


def without_python(command: list[str]) -> list[str]:
    """`python -m program …` as `program …`: the console script of the same name."""
    assert command[1] == "-m"
    return command[2:]


def _for_docker_stack(compose: dict[str, Any]) -> str:
    """The file in the older dialect of `docker stack`, which knows no name, no profiles and no conditions."""
    reduced = {key: value for key, value in compose.items() if key in {"services", "volumes"}}
    for service in reduced["services"].values():
        service.pop("profiles", None)
        if "depends_on" in service:
            service["depends_on"] = list(service["depends_on"])
    return yaml.safe_dump({"version": "3.9", **reduced})


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=30, env={**os.environ, "DOCKER_HOST": ""}
    )


def _seconds(duration: str) -> float:
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * scale[unit] for number, unit in re.findall(r"(\d+)(us|ms|s|m|h)", duration))
