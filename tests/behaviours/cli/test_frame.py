"""What holds for every command: it loads little, ends a mistake with a sentence and a code of the table, completes names."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Producer, errors
from oncelog.api.api import Api
from oncelog.errors import ResponseTimeout
from oncelog_service.cli import COMMANDS
from oncelog_service.cli.frame import codes
from oncelog_service.cli.frame.codes import code_of
from oncelog_service.cli.frame.lazy import split
from oncelog_service.cli.frame.table import lines, measured
from oncelog_service.logs import printable
from tests.behaviours.cli.support import ONCELOG, process, run, value
from tests.docs.pages import ROOT
from tests.patience import PATIENCE
from tests.world.service import RunningService, free_port, running_service


@pytest.fixture
def client(running: RunningService) -> Iterator[Client]:
    with Client(running.url) as client:
        client.create_topic("t", exist_ok=True)
        yield client


# --- what is loaded

_HEAVY = {
    "rich",
    "plyvel",
    "sqlalchemy",
    "uvloop",
    "prometheus_client",
    "pydantic_settings",
    "pyspark",
    "pyarrow",
    "opentelemetry",
}
_OF_THE_SDK = {"asyncio", "fastavro", "httptools", "pydantic", "ssl", "certifi"}
_OF_OTHERS = (
    "oncelog_service.storage",
    "oncelog_service.config",
    *(f"oncelog.{part}" for part in ("client", "producing", "reading", "transactions", "aio", "sql", "spark", "telemetry")),
)
"""What commands load that publish, read or open a store."""


def loaded_by(*words: str, url: str = "") -> set[str]:
    """The modules that a command has loaded when it ends."""
    code = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['oncelog', *{list(words)!r}]\n"
        "from oncelog_service.__main__ import main\nmain()"
    )
    environment = {**os.environ, "ONCELOG_URL": url}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def _packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.real
@pytest.mark.parametrize("words", [("--version",), ("--help",)])
def test_what_asks_nobody_loads_neither_the_sdk_nor_any_command(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words)
    assert not _packages(loaded) & (_HEAVY | _OF_THE_SDK)
    ours = {name for name in loaded if name.startswith("oncelog")}
    assert not ours & {f"oncelog_service.cli.{module}" for module, _ in COMMANDS.values()}
    assert len(ours) <= 20, sorted(ours)


@pytest.mark.real
def test_a_short_command_loads_the_sdk_and_itself_alone(client: Client) -> None:
    for words in (("topic", "list"), ("topic", "show", "t"), ("status",)):
        loaded = loaded_by(*words, url=client.url)
        assert not _packages(loaded) & _HEAVY
        assert not [name for name in loaded if name.startswith(_OF_OTHERS)]
        assert len([name for name in loaded if name.startswith("oncelog_service")]) <= 20


# --- mistakes

_MISTAKES: list[tuple[str, int, str]] = [
    ("topc list", 2, "no such command 'topc'; did you mean 'topic'"),
    ("topic lst", 2, "no such command 'lst'; did you mean 'list'?"),
    ("produce t x", 2, "no such command 'produce'; did you mean 'publish'?"),
    ("groups", 2, "no such command 'groups'; did you mean 'subscription'?"),
    ("topic describe t", 2, "no such command 'describe'; did you mean 'show'?"),
    ("tx add", 2, "no such command 'add'; see oncelog tx --help"),
    ("read t --offset 1", 2, "no such option: --offset; did you mean --from?"),
    ("publish t x --group=g", 2, "no such option: --group"),
    ("topic create", 2, "missing argument 'topic'"),
    ("topic create x --ttl abc", 2, "'abc' is no whole number: '--ttl'"),
    ("topic create x --ttl 0", 2, "'0' is less than 1"),
    ("topic create x --ttl", 2, "--ttl"),
    ("topic create x --tll 5", 2, "no such option: --tll"),
    ("topic create x --deduplication maybe", 2, "'maybe' is not one of"),
    ("topic create x y", 2, "unexpected extra argument"),
    ("tx show 0", 2, "'0' is less than 1"),
    ("top --interval soon --once", 2, "'soon' is no number"),
    ("-u", 2, "-u needs a value"),
    ("--url http://[ topic list", 2, "not the URL of a service"),
    ("--json --namespace x serve", 2, "--namespace before 'serve' is of no use"),
    ("-u x completion bash", 2, "-u before 'completion' is of no use".replace("-u", "--url")),
    ("completion csh", 2, "'csh' is not one of"),
    ("topic list --token-file x", 2, "no such option: --token-file"),
    ("topic list --ca /nowhere -u https://127.0.0.1:1", 2, "to trust cannot be read"),
    ("topic list -c nobody", 2, "there is no context 'nobody'"),
    ("--url= topic list", 2, "invalid value for --url: is empty"),
    ("topic list -c ''", 2, "invalid value for --context: is empty"),
    ("topic list -N ''", 2, "invalid value for --namespace: is empty"),
    ("topic list --token ''", 2, "invalid value for --token: is empty"),
    ("context show a -c b", 2, "is 'b', and the argument 'a'; choose"),
    ("context add c x:1 --token-file ''", 2, "token_file of context c is empty"),
    ("read t --to ''", 2, "invalid value for --to: '.' is no file"),
    ("read t --to FOLDER", 2, "'FOLDER' is no file"),
    ("read nowhere --to FOLDER/f", 4, "there is no topic default/nowhere"),
    ("bench --topic ''", 1, "but not . or .., not ''"),
    ("publish t x --expect-offset 0", 6, "[expectations_not_checked]"),
    ("topic show \udcff", 1, "[invalid_request]"),
    ("topic list --token \udcff", 2, "is no text in UTF-8"),
    ("publish t x -P a=\udcff", 2, "is no text in UTF-8"),
    ("context add c x:1 --token \udcff", 2, "is no text in UTF-8"),
    ("topic show missing", 4, "there is no topic default/missing"),
    ("topic create t", 6, "exists already; exist_ok (--exist-ok)"),
    ("producer show t nobody", 4, "[producer_not_found]"),
    ("token revoke 000000000000 --yes", 4, "[token_not_found]"),
    ("topic show 'a b'", 1, "[invalid_request]"),
    ("publish t --file FOLDER", 2, "irectory"),
    ("verify --store leveldb://FOLDER/file", 2, "there is no store at"),
    ("copy leveldb://FOLDER/none leveldb://FOLDER/to", 2, "there is no store at"),
    ("backup list FOLDER/none", 1, "FOLDER/none"),
    ("config show --config FOLDER", 2, "FOLDER is a directory"),
    ("config check FOLDER", 10, ""),
]


def test_a_mistake_is_a_sentence_and_a_code(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, code, says in _MISTAKES:
        ended = run(*shlex.split(words.replace("FOLDER", str(tmp_path))), url=client.url)
        assert ended.exit_code == code, (words, ended.output)
        assert says.replace("FOLDER", str(tmp_path)) in ended.stderr, words
        if code != 10:
            assert ended.stdout == "", words
            sentence, *certainty = ended.stderr.splitlines()
            assert sentence.startswith("error: "), words
            assert certainty in ([], ["definite: it was not done"]), words
        assert "Traceback" not in ended.output, words


def test_who_may_not_and_what_is_away_have_codes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(token="admin-token") as service:
        assert run("topic", "list", url=service.url).exit_code == codes.REFUSED
        assert run("topic", "list", "--token", "wrong", url=service.url).exit_code == codes.REFUSED
        made = value(run("token", "create", "r", "--grant", "read:default/x", "-j", "--token", "admin-token", url=service.url))
        refused = run("topic", "create", "t", "--token", made["secret"], url=service.url)
        assert (refused.exit_code, "[not_allowed]" in refused.stderr) == (codes.REFUSED, True)
    nobody = f"127.0.0.1:{free_port()}"
    away = run("-u", nobody, "status")
    assert (away.exit_code, away.stderr.count("\n"), "`oncelog serve` starts one" in away.stderr) == (codes.AWAY, 1, True)

    def unknown(*_: object, **__: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    lost = run("-u", "log.example", "status")
    assert (lost.exit_code, "Name or service not known" in lost.stderr, "starts one" in lost.stderr) == (codes.AWAY, True, False)


def test_what_only_reads_never_may_have_been_done(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> Any:
        raise ResponseTimeout("no answer within 30 s")

    for call in ("topics", "overview", "namespaces", "delete_topic"):
        monkeypatch.setattr(Api, call, late)
    for words in (("topic", "list"), ("top", "--once"), ("status",), ("verify",)):
        told = run(*words, url=client.url)
        assert (told.exit_code, told.stderr) == (3, "error: no answer within 30 s [response_timeout]\n"), words
        assert json.loads(run(*words, "--json", url=client.url).stderr)["definite"] is True
    changed = run("topic", "delete", "t", "--yes", url=client.url)
    assert "not definite: it may have been done" in changed.stderr


def test_a_bug_is_a_sentence_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("what")

    monkeypatch.setattr(Api, "topics", broken)
    ended = run("topic", "list", url=client.url)
    assert (ended.exit_code, ended.stderr.count("\n"), "KeyError: 'what'" in ended.stderr) == (codes.BUG, 1, True)
    assert isinstance(run("topic", "list", url=client.url, env={"ONCELOG_TRACEBACK": "1"}).exception, KeyError)


@pytest.mark.real
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
def test_a_full_disk_is_a_sentence_and_a_reader_that_has_gone_is_none(client: Client) -> None:
    environment = {**os.environ, "ONCELOG_URL": client.url}
    for words in (("topic", "list"), ("--help",), ("config", "show")):
        with open("/dev/full", "w") as full:
            line = [*ONCELOG, *words]
            done = subprocess.run(line, env=environment, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (1, b"error: stdout cannot be written: no space is left on the device\n"), words
        with process(*words, url=client.url) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()
            assert (running.wait(PATIENCE), running.stderr.read()) == (0, b""), words


@pytest.mark.real
def test_a_stream_that_is_closed_is_a_sentence_and_none_is_taken_for_another(client: Client) -> None:
    closed = b"error: stdout cannot be written: it is closed\n"
    for words, code, out, err in (
        ("topic list >&-", 1, b"", closed),
        ("read t -o csv >&-", 1, b"", closed),
        ("--help >&-", 1, b"", closed),
        ("topic list <&-", 0, b"topic\nt\n", b""),
        ("publish t <&-", 1, b"", b"error: line 0 (from 0): cannot be read: Bad file descriptor [invalid_request]\n"),
        ("topic delete t <&-", 1, b"", b"Delete topic default/t"),
        ("topic show missing --json 2>&-", 4, b"", b""),
        ("topic list >&- 2>&- <&-", 1, b"", b""),
    ):
        line = f"exec {shlex.join(ONCELOG)} {words}"
        done = subprocess.run(
            ["sh", "-c", line], env={**os.environ, "ONCELOG_URL": client.url}, capture_output=True, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout) == (code, out), words
        assert done.stderr.startswith(err) if err else done.stderr == b"", words


@pytest.mark.real
def test_what_a_locale_has_no_letters_for_is_written_out(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONIOENCODING": "ascii"}
    assert run("context", "add", "c", "http://zürich", env=environment).exit_code == 0
    with process("context", "list", **environment) as running:
        out, err = running.communicate(timeout=PATIENCE)
    assert (out.splitlines()[1], err) == (rb"c	no	http://z\xfcrich	-	-", b"")


def test_what_is_not_answered_with_yes_is_not_done_and_stdout_has_the_result_alone(client: Client) -> None:
    for answer in (b"", b"\n", b"n\n", b"yess\n", b"\xff\n", b"delete it"):
        done = run("topic", "delete", "t", "--json", url=client.url, stdin=answer)
        assert (done.exit_code, done.stdout, client.topics()) == (1, "", ["t"]), answer
    for answer in (b"y\n", b"YES\n", b"yes"):
        done = run("topic", "delete", "t", "--json", url=client.url, stdin=answer)
        assert (done.exit_code, done.stdout[:1], client.topics()) == (0, "{", []), answer
        assert "Delete topic" in done.stderr
        client.create_topic("t")


@pytest.mark.real
@pytest.mark.parametrize(
    ("raised_in", "says"),
    [
        ("importlib.import_module", "interrupted before it was done"),
        ("oncelog.api.api.Api.__init__", "interrupted before it was done"),
        ("oncelog.api.api.Api.topics", "interrupted: nothing was changed"),
        ("oncelog_service.cli.main", "interrupted before it began"),
    ],
)
def test_ctrl_c_is_a_sentence_wherever_it_comes(raised_in: str, says: str, client: Client) -> None:
    """The module of the command line is loaded, then that of the command, then its client; Ctrl-C may come in each."""
    place, _, name = raised_in.rpartition(".")
    code = (
        "import sys, oncelog_service.__main__ as entry\n"
        "from pkgutil import resolve_name\n"
        "def interrupted(*_, **__): raise KeyboardInterrupt\n"
        f"class Loading:\n    __path__ = []\n    def __getattr__(self, name): raise KeyboardInterrupt\n"
        f"place = {place!r}\n"
        "if place == 'oncelog_service.cli': sys.modules[place] = Loading()\n"
        f"elif place == 'importlib':\n    import oncelog_service.cli.frame.lazy as lazy; lazy.import_module = interrupted\n"
        f"else: setattr(resolve_name(place), {name!r}, interrupted)\n"
        "sys.argv = ['oncelog', 'topic', 'list']\n"
        "entry.main()"
    )
    environment = {**os.environ, "ONCELOG_URL": client.url}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{says}\n")


# --- codes


def test_every_code_stands_in_the_table_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    table = {int(code) for code in re.findall(r"^\| (\d+) \| ", page.partition("## Exit codes")[2], re.MULTILINE)}
    assert table == {each for name, each in vars(codes).items() if name.isupper() and isinstance(each, int)}


def test_every_error_has_a_code_of_the_table() -> None:
    found = {
        kind.code: code_of(kind())
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.OncelogError)
    }
    expected = {
        codes.AWAY: "connection_failed response_timeout gateway_unavailable overloaded disk_full quota_exceeded",
        codes.NOT_FOUND: "not_found topic_not_found token_not_found producer_not_found subscription_not_found",
        codes.REFUSED: "unauthorized not_allowed certificate_refused host_not_allowed",
        codes.CONFLICT: "topic_exists sequence_reused offset_mismatch producer_fenced consumer_fenced transaction_conflict",
        codes.ERROR: "internal_error invalid_request topic_damaged request_too_large codec_error",
    }
    assert {name: found[name] for names in expected.values() for name in names.split()} == {
        name: code for code, names in expected.items() for name in names.split()
    }
    assert set(found.values()) == set(expected)


# --- options before and behind


def test_options_that_say_which_service_mean_the_same_before_the_command_and_behind_it(client: Client) -> None:
    client.create_topic("u", namespace="other")
    for words in (
        ("-u", client.url, "-N", "other", "-j", "topic", "list"),
        ("topic", "-u", client.url, "-Nother", "--json", "list"),
        ("--url", client.url, "topic", "--namespace=other", "list", "-j"),
        ("topic", "list", "-j", "-u", client.url, "-N", "other"),
        ("-N", "nowhere", "topic", "list", "-j", f"-u{client.url}", "-N", "other"),
    ):
        assert value(run(*words)) == ["u"], words


def test_what_stands_in_front_is_taken_off_and_nothing_else() -> None:
    assert split(["-ux", "--url", "y", "--json", "topic", "-u", "z"]) == (
        [("--url", ["-ux"]), ("--url", ["--url", "y"]), ("--json", ["--json"])],
        ["topic", "-u", "z"],
    )
    assert split(["--url-of", "x"]) == ([], ["--url-of", "x"])
    assert split(["--version", "-u", "x"]) == ([], ["--version", "-u", "x"])


# --- completion

_ASK = """
source "$1"
COMP_LINE="$2" COMP_POINT=${#2} _oncelog_completion "$3" 2>&1
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(line: str, tmp_path: Path, **env: str) -> list[str]:
    """What bash is offered behind that line."""
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    program = Path(sys.executable).parent / "oncelog"
    done = subprocess.run(
        ["bash", "-c", f"COMP_LINE=; COMP_POINT=0; {_ASK}", "bash", script, line, program],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


@pytest.mark.real
def test_bash_asks_for_what_stands_before_the_cursor(client: Client, tmp_path: Path) -> None:
    with Producer[bytes]("t", name="p:1", client=client) as producer:
        producer.send(b"x")
    for line, offered in (
        ("oncelog topi", ["topic"]),
        (f"oncelog -u {client.url} topic show t", ["t"]),
        ("oncelog topic list --namespace=def", ["default"]),
        ("oncelog producer show t p:", ["1"]),
        ("oncelog publish t --producer ", ["p:1"]),
    ):
        assert completed(line, tmp_path, ONCELOG_URL=client.url) == offered, line


def test_commands_options_and_names_are_completed(client: Client, tmp_path: Path) -> None:
    with Producer[bytes]("t", name="p:1", client=client) as producer:
        producer.send(b"x")
    client.open_subscription("t", "billing")
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert run("context", "add", "staging", client.url, env=config).exit_code == 0

    def offers(line: str, url: str) -> list[str]:
        asked = {"_ONCELOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return sorted(run(url=url, env={**config, **asked}).stdout.split())

    for line, offered in (
        ("oncelog topi", ["topic"]),
        ("oncelog topic sh", ["show"]),
        ("oncelog topic show --nam", ["--namespace"]),
        ("oncelog topic show t", ["t"]),
        (f"oncelog -u {client.url} topic show t", ["t"]),
        ("oncelog topic list -c ", ["staging"]),
        ("oncelog -c staging topic show t", ["t"]),
        ("oncelog topic list --namespace=def", ["default"]),
        ("oncelog producer show t p", ["p:1"]),
        ("oncelog subscription seek t b", ["billing"]),
        ("oncelog publish t --producer ", ["p:1"]),
        ("oncelog publish --key k t --producer p", ["p:1"]),
        ("oncelog publish --producer ", []),
        ("oncelog read t --subscription ", ["billing"]),
        ("oncelog -c ", ["staging"]),
        ("oncelog --context=", ["staging"]),
        ("oncelog -j --namespace=x --context=st", ["staging"]),
        ("oncelog topic -c sta", ["staging"]),
        (f"oncelog -u {client.url} -N def", ["default"]),
        ("oncelog -u ", []),
        ("oncelog --c", ["--ca", "--cert", "--cert-key", "--context"]),
        (f"oncelog -u 127.0.0.1:{free_port()} topic show t", []),
        ("oncelog -c nobody topic show t", []),
    ):
        assert offers(line, "" if " -c " in line else client.url) == offered, line
    assert offers(f"oncelog -u leveldb://{tmp_path}/store topic show ", "") == []
    assert not (tmp_path / "store").exists(), "to press a key opens no store"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_ask_for_the_same(shell: str, client: Client) -> None:
    script = run("completion", shell).stdout
    assert f"_ONCELOG_COMPLETE=complete_{shell}" in script
    for line, offered in (("oncelog topic show t", r"\bt\b"), ("oncelog --namespace=def", r"\bdefault\b")):
        environment = {"_ONCELOG_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
        environment["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
        done = run(url=client.url, env=environment)
        assert (done.exit_code, done.stderr) == (0, "")
        assert re.search(offered, done.stdout)


def test_names_that_a_shell_could_take_for_more_are_not_offered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.api.Api.topics", lambda *_: ["good", "g$(touch x)", "g h", "g;i"])
    environment = {"_ONCELOG_COMPLETE": "complete_bash", "COMP_WORDS": "oncelog topic show g", "COMP_CWORD": "3"}
    assert run(url=client.url, env=environment).stdout == "good\n"


# --- tables


def test_a_table_fits_the_terminal_or_becomes_blocks() -> None:
    rows = [["orders", "12", "a text of some words"], ["日本", "7", "b"]]
    columns = ["topic", "lag", "note"]
    assert list(lines(columns, rows, 80)) == [
        "topic   lag  note",
        "orders  12   a text of some words",
        "日本    7    b",
    ]
    assert list(lines(columns, [["orders", "12", "a text of many words that do not end"]], 40)) == [
        "topic   lag  note",
        "orders  12   a text of many words that",
        "             do not end",
    ]
    assert list(lines(columns, rows, 20)) == [
        *("topic  orders", "lag    12", "note   a text of some words"),
        "",
        *("topic  日本", "lag    7", "note   b"),
    ]
    for width in range(1, 90):
        assert [line for line in lines(columns, rows, max(width, 40)) if measured(line) > max(width, 40)] == []


def test_rows_come_as_they_are_found() -> None:
    taken = []

    def rows() -> Iterator[list[str]]:
        for number in range(1_000):
            taken.append(number)
            yield [f"topic-{number}"]

    shown = lines(["topic"], rows(), 80)
    next(shown)
    assert len(taken) == 200
    assert len(list(shown)) == 1_000


@pytest.mark.real
@pytest.mark.parametrize(
    ("env", "styled"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_on_a_terminal_heads_are_bold_unless_that_is_not_wanted(env: dict[str, str], styled: bool, client: Client) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "ONCELOG_URL": client.url, "COLUMNS": "30", **env}
    with subprocess.Popen([*ONCELOG, "topic", "list"], stdout=theirs, stdin=theirs, env=environment) as running:
        os.close(theirs)
        told = b""
        with suppress(OSError):  # how Linux says that the other end is closed
            while more := os.read(ours, 4096):
                told += more
        assert running.wait(PATIENCE) == 0
    os.close(ours)
    assert told == (b"\x1b[1mtopic\x1b[0m" if styled else b"topic") + b"\r\nt\r\n"


def test_what_would_do_something_to_a_terminal_is_written_out() -> None:
    assert printable("a\x1b[31mb\tc\nd\x9b", kept="") == r"a\x1b[31mb\tc\nd\x9b"
    assert printable("straße 日本") == "straße 日本"
