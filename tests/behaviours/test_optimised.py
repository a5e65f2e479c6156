"""`python -OO` leaves out docstrings and asserts: service, SDK, stores in the process and commands are the same without them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.errors import all_errors
from tests.patience import PATIENCE
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

SCRIPT = """
import json, sys
from oncelog import Client, Producer, Reader
from oncelog.errors import OncelogError, all_errors

def refused(call):
    try:
        call()
    except OncelogError as error:
        return [type(error).__name__, str(error), error.definite]

found = [[kind().to_problem(), str(kind())] for kind in all_errors()]
for url in sys.argv[1:]:
    for _ in range(2):  # a program that is begun again
        with Client(url) as client:
            client.create_topic("orders", exist_ok=True)
            with Producer("orders", name="shop", client=client) as producer:
                found.append([producer.send(b"%d" % each, sequence_id=each).status for each in range(3)])
                found.append(refused(lambda: producer.send(b"another", sequence_id=1)))
            with client.transaction() as tx:
                tx.send("orders", b"in a transaction")
            found.append(refused(lambda: client.create_topic("orders")))
            found.append(refused(lambda: client.transaction_status(7)))
            found.append(refused(lambda: client.topic("none")))
            found.append(len(Reader("orders", client=client, timeout=0).read(100, timeout=0)))
print(json.dumps([sys.flags.optimize, found]))
"""


def python(*words: str, optimised: bool, exit_code: int = 0) -> str:
    command = [sys.executable, *(["-OO"] if optimised else []), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == exit_code, f"{words[-3:]}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path_factory.mktemp("served"))
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTHONOPTIMIZE", "2")
            service.start()
        yield service
    finally:
        service.kill()


def test_a_program_is_told_the_same_words_by_a_service_and_by_a_store_and_begins_again(
    service: ServiceProcess, tmp_path: Path
) -> None:
    plain, optimised = (
        json.loads(python("-c", SCRIPT, *urls, optimised=on))
        for on, urls in (
            (False, [f"leveldb://{tmp_path}/plain", f"sqlite://{tmp_path}/plain.db"]),
            (True, [service.url, f"sqlite://{tmp_path}/optimised.db"]),
        )
    )
    assert (plain[0], optimised[0]) == (0, 2)
    assert optimised[1] == plain[1]
    assert len(plain[1]) == len(all_errors()) + 2 * 2 * 6


def test_the_commands_run_and_end_with_their_codes(service: ServiceProcess) -> None:
    def oncelog(*words: str, exit_code: int = 0) -> str:
        return python("-m", "oncelog_service", *words, optimised=True, exit_code=exit_code)

    for words in ((), ("pipeline", "archive")):  # by hand, and made of the jobs' signatures
        assert "--help" in oncelog(*words, "--help")
    oncelog("topic", "create", "once", "--url", service.url)
    oncelog("topic", "create", "once", "--url", service.url, exit_code=6)
    assert "once" in oncelog("topic", "list", "--url", service.url)
