"""A primary, its replica, and three sentinels that watch them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis
from redis.exceptions import ResponseError
from redis.sentinel import Sentinel

from bridge.link.connections import client
from bridge.settings.address import address_of
from bridge.stack.ports import HOST, free_port, keep_port
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until

NAME = "the-primary"
PASSWORD = "pw-data"
SENTINEL_PASSWORD = "pw-sentinel"


def port_of_its_own(stack: ExitStack) -> int:
    """A port that, on Linux, no other test is given before its server listens, nor while that is stopped."""
    while True:
        port = free_port()
        if (kept := keep_port(port)) is not None:
            stack.enter_context(kept)
            return port
        if sys.platform != "linux":
            return port


class Sentinels:
    """A primary, its replica, and three sentinels that watch over them, all with passwords."""

    def __init__(self, binary: Path, folder: Path, yard: NodeYard, stack: ExitStack, *, quick: bool) -> None:
        options = {"requirepass": PASSWORD, "masterauth": PASSWORD, "repl-diskless-sync-delay": "0"}
        # Sentinels replace a primary that does not answer for so long, also after a pause of the whole machine.
        down_after_ms = 700 if quick else 5000
        self.ports: list[int] = []
        self.servers: dict[int, Any] = {}
        for i in range(2):
            port = port_of_its_own(stack)
            command = [str(binary), "--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""]
            command += ["--dbfilename", f"{i}.rdb", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
            command += [word for name, value in options.items() for word in (f"--{name}", value)]
            if i:
                command += ["--replicaof", f"{HOST} {self.ports[0]}"]
            self.servers[port] = yard.process(f"server{i}", command, ready_text="Ready to accept connections")
            self.ports.append(port)
        replica = stack.enter_context(self.connect(self.ports[1]))
        wait_until(
            lambda: replica.info("replication")["master_link_status"] == "up", description="the replica to be in sync"
        )
        self.sentinel_ports = [port_of_its_own(stack) for _ in range(3)]
        for i, port in enumerate(self.sentinel_ports):
            file = folder / f"sentinel{i}.conf"
            file.write_text(
                f"port {port}\nbind {HOST}\ndir {folder}\nrequirepass {SENTINEL_PASSWORD}\n"
                f"sentinel sentinel-pass {SENTINEL_PASSWORD}\n"
                f"sentinel monitor {NAME} {HOST} {self.ports[0]} 2\n"
                f"sentinel auth-pass {NAME} {PASSWORD}\n"
                f"sentinel down-after-milliseconds {NAME} {down_after_ms}\n"
                f"sentinel failover-timeout {NAME} 4000\n"
            )
            yard.process(f"sentinel{i}", [str(binary), str(file), "--sentinel"], ready_text="Sentinel ID is")
        with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{self.sentinel_ports[0]}") as one:
            wait_until(
                lambda: (
                    b"num-other-sentinels" in (found := one.execute_command("SENTINEL", "MASTERS")[0])
                    and found[found.index(b"num-other-sentinels") + 1] == b"2"
                    and found[found.index(b"num-slaves") + 1] == b"1"
                ),
                description="the sentinels to know each other and the replica",
                timeout_s=90,
            )

    @property
    def url(self) -> str:
        """The broker's URL, as kombu takes it."""
        return ";".join(f"sentinel://:{PASSWORD}@{HOST}:{port}/0" for port in self.sentinel_ports)

    @property
    def conf(self) -> dict[str, Any]:
        """Further Celery settings."""
        options = {"master_name": NAME, "sentinel_kwargs": {"password": SENTINEL_PASSWORD}}
        return {"broker_transport_options": options, "result_backend_transport_options": options}

    def fail_over(self) -> None:
        """Asks the sentinels for another primary, and waits until they have one."""
        first = self.primary()

        def begun() -> bool:
            with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{self.sentinel_ports[0]}") as operator:
                try:
                    operator.execute_command("SENTINEL", "FAILOVER", NAME)
                except ResponseError as refused:
                    # For a moment, their information about the replica may be too old.
                    if "NOGOODSLAVE" not in str(refused):
                        raise
                    return False
            return True

        wait_until(begun, description="the sentinels to change the primary", timeout_s=90)
        wait_until(lambda: self.primary() != first, description="another primary", timeout_s=90)

    def connect(self, port: int) -> Redis:
        """A client of one server, whatever its role."""
        return Redis(host=HOST, port=port, password=PASSWORD, decode_responses=True)

    def client(self, **options: Any) -> Redis:
        """A client of the present primary."""
        sentinels = [(HOST, port) for port in self.sentinel_ports]
        asked = Sentinel(sentinels, sentinel_kwargs={"password": SENTINEL_PASSWORD}, password=PASSWORD)
        found: Redis = asked.master_for(NAME, **options)
        return found

    def primary(self) -> int:
        """The port of the primary that the sentinels name."""
        with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{self.sentinel_ports[0]}") as one:
            found = one.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(found[1])


def address(sentinels: Sentinels) -> str:
    """The address that the bridge makes from the settings."""
    made = Celery("somewhere", broker=sentinels.url, set_as_current=False)
    made.conf.update(sentinels.conf)
    return address_of(made)
