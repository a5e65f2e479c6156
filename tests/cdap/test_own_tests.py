"""CDAP's own tests of its messaging server, whole and from its jars, against oncelog."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.cdap.java import MISSING, compiled, jars, jvm
from tests.patience import PATIENCE
from tests.world.service import running_service

pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

CLASSES = {"5.1.2": ("co.cask.cdap", 8), "6.10.0": ("io.cdap.cdap", 18)}
"""Packages, and how many tests of MessagingHttpServiceTest there are."""
LIFETIME = 1e10
"""Seconds: these tests give it to CDAP's server, since their write pointers are 1, 2 and 3."""


@contextmanager
def services(folder: Path) -> Iterator[int]:
    """A port where each connection is a new service, one at a time: its port comes as a line, and it ends with the connection."""
    stopped = False

    def serve() -> None:
        for number in count():
            connection, _ = listener.accept()
            with connection:
                if stopped:
                    return
                with running_service(
                    f"leveldb://{folder / str(number)}", cdap_clients=True, max_transaction_lifetime_seconds=LIFETIME
                ) as service:
                    connection.sendall(service.url.rpartition(":")[2].encode() + b"\n")
                    connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stopped = True
            socket.create_connection(listener.getsockname()).close()
            thread.join(PATIENCE)


def run_own_tests(version: str, path: str, *options: str) -> None:
    package, tests = CLASSES[version]
    command = jvm(path, *options, "org.junit.runner.JUnitCore", f"{package}.messaging.server.MessagingHttpServiceTest")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert f"OK ({tests} tests)" in done.stdout, done.stdout


@pytest.mark.parametrize("version", CLASSES)
def test_all_of_cdaps_own_tests_pass_against_oncelog(version: str, tmp_path: Path) -> None:
    server = f"{CLASSES[version][0].replace('.', '/')}/messaging/server/MessagingHttpService.java"
    path = compiled(version, tmp_path / "classes", "oncelog/Announced.java", server)
    with services(tmp_path) as port:
        run_own_tests(version, path, f"-Doncelog.services={port}")


@pytest.mark.slow
@pytest.mark.parametrize("version", CLASSES)
def test_they_pass_against_cdaps_server_by_the_same_means(version: str) -> None:
    run_own_tests(version, f"{jars(version)}/*")
