"""Contexts: what counts is decided in one order, the file is its owner's alone and whole, and a token goes nowhere else."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client
from oncelog_service.cli.frame import contexts as file
from oncelog_service.cli.frame.connection import chosen, service_url
from oncelog_service.cli.frame.contexts import KEYS, BadContexts, Context, Contexts, change, checked, load, path_of
from tests.behaviours.cli.support import run, value
from tests.world.service import running_service

SECRET = "s3cr3t-of-prod"
KNOWN = Contexts(
    {
        "prod": Context("https://prod", token=SECRET, ca="/prod-ca", cert="/prod-cert", cert_key="/prod-key", namespace="shop"),
        "plain": Context("http://plain"),
    },
    current="prod",
)
NONE: dict[str, str] = {}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of contexts is to lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "oncelog" / "contexts.toml"


# --- what counts


@pytest.mark.parametrize(
    ("options", "environment", "url", "token", "namespace", "context"),
    [
        (NONE, NONE, "https://prod", SECRET, "shop", "prod"),
        ({"context": "plain"}, NONE, "http://plain", None, "default", "plain"),
        (NONE, {"ONCELOG_CONTEXT": "plain"}, "http://plain", None, "default", "plain"),
        ({"context": "prod"}, {"ONCELOG_CONTEXT": "plain"}, "https://prod", SECRET, "shop", "prod"),
        # what names another address leaves the whole context out
        ({"url": "other:1"}, NONE, "http://other:1", None, "default", None),
        (NONE, {"ONCELOG_URL": "http://other"}, "http://other", None, "default", None),
        (NONE, {"ONCELOG_URL": "http://other", "ONCELOG_CONTEXT": "prod"}, "http://other", None, "default", None),
        ({"url": "other:1"}, {"ONCELOG_TOKEN": "mine"}, "http://other:1", "mine", "default", None),
        # an option that names a context comes before the environment
        ({"context": "prod"}, {"ONCELOG_URL": "http://other", "ONCELOG_TOKEN": "mine"}, "https://prod", SECRET, "shop", "prod"),
        ({"context": "prod", "url": "twin"}, NONE, "http://twin", SECRET, "shop", "prod"),
        ({"context": "prod", "token": "t", "namespace": "n"}, NONE, "https://prod", "t", "n", "prod"),
        # one that does not comes behind it
        (NONE, {"ONCELOG_TOKEN": "mine"}, "https://prod", "mine", "shop", "prod"),
        ({"context": "plain"}, {"ONCELOG_TOKEN": "mine"}, "http://plain", "mine", "default", "plain"),
        (NONE, {"ONCELOG_URL": "", "ONCELOG_TOKEN": "", "ONCELOG_CONTEXT": ""}, "https://prod", SECRET, "shop", "prod"),
    ],
)
def test_what_counts_is_decided_in_one_order(
    options: Mapping[str, str], environment: Mapping[str, str], url: str, token: str | None, namespace: str, context: str | None
) -> None:
    found = chosen(options, environment, lambda: KNOWN)
    assert (found.url, found.token(), found.namespace, found.context.value) == (url, token, namespace, context)
    assert SECRET not in repr(found)


def test_without_anything_the_default_counts() -> None:
    found = chosen({}, {}, Contexts)
    assert (found.url, found.token(), found.namespace) == ("http://127.0.0.1:7070", None, "default")
    assert {each.source for each in found.choices.values()} == {"default"}


def test_a_key_belongs_to_the_certificate_that_is_named_beside_it() -> None:
    assert chosen({}, {}, lambda: KNOWN).variables()["ONCELOG_KEY"] == "/prod-key"
    assert chosen({"cert": "/both"}, {"ONCELOG_KEY": "/other"}, lambda: KNOWN).variables()["ONCELOG_KEY"] == ""
    by_environment = chosen({}, {"ONCELOG_CERT": "/c"}, lambda: KNOWN)
    assert by_environment["cert_key"] is None
    assert by_environment.variables() == {"ONCELOG_CA": "/prod-ca"}


def test_a_file_of_contexts_is_not_read_where_none_could_count() -> None:
    def unread() -> Contexts:
        raise AssertionError("it was read")

    assert chosen({"url": "a:1"}, {"ONCELOG_CONTEXT": "x"}, unread).url == "http://a:1"


def test_addresses_are_what_people_type() -> None:
    for text, url in (
        ("localhost:7070", "http://localhost:7070"),
        ("a:1, https://b", "http://a:1,https://b"),
        ("[::1]:7070", "http://[::1]:7070"),
        ("leveldb:///path", "leveldb:///path"),
        ("memory://", "memory://"),
    ):
        assert service_url(text) == url


# --- the file


_TEXT = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="".join(map(chr, (*range(32), 127)))), min_size=1
)
_CONTEXTS = st.builds(
    Context, _TEXT, st.none() | _TEXT, st.none(), st.none() | _TEXT, _TEXT, st.none() | _TEXT, st.none() | _TEXT
)


@given(st.dictionaries(st.from_regex(file.NAME, fullmatch=True), _CONTEXTS, max_size=3), st.data())
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, known: dict[str, Context], data: Any) -> None:
    path = tmp_path_factory.mktemp("contexts") / "oncelog" / "contexts.toml"
    contexts = Contexts(known, data.draw(st.sampled_from([None, *known])))
    assert all(checked(name, each) == each for name, each in known.items())
    change(path, lambda _: contexts)
    assert load(path) == contexts


def test_only_its_owner_can_read_the_file_and_a_failed_write_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "oncelog" / "contexts.toml"
    before = os.umask(0)
    try:
        change(path, lambda _: KNOWN)
        path.chmod(0o644)
        change(path, lambda contexts: contexts.using("plain"))
    finally:
        os.umask(before)
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadContexts, match="No space left"):
        change(path, lambda contexts: contexts.removed("prod"))
    assert load(path) == KNOWN.using("plain")
    assert [each.name for each in path.parent.iterdir()] == ["contexts.toml"]


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real, path = tmp_path / "dotfiles" / "contexts.toml", tmp_path / "oncelog" / "contexts.toml"
    change(real, lambda _: KNOWN)
    path.parent.mkdir()
    path.symlink_to(real)
    change(path, lambda contexts: contexts.removed("plain"))
    assert path.is_symlink()
    assert load(real).known.keys() == {"prod"}


def test_of_many_that_add_at_the_same_time_all_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "contexts.toml"
    add = [lambda n=n: change(path, lambda known: known.added(f"c{n}", Context("http://x"))) for n in range(12)]
    threads = [threading.Thread(target=each) for each in add]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(load(path).known) == 12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[contexts", "is no TOML"),
        ("contexts = 1", r"it says current = "),
        ("current = 3", r"it says current = "),
        ("curent = 'x'", "'curent' is nothing that it may say"),
        ("[contexts.a]\ntoken = 'VERY-SECRET'", "context a has no url"),
        ("[contexts.a]\nurl = 'x'\ntoken = 'VERY-SECRET'\ntokn = 'y'", "'tokn' is no key of a context"),
        ("[contexts.a]\nurl = 'x'\ntoken = 5", "values that are no text"),
        ("[contexts.a]\nurl = 'x'\ntoken = 'VERY-SECRET'\ntoken_file = 'f'", "one is enough"),
        ("[contexts.a]\nurl = 'x'\ncert_key = 'f'", "without its cert"),
        ("[contexts.'a/b']\nurl = 'x'", "a context's name is"),
        ("[contexts.a]\nurl = 'x'\ntoken = \"VERY-SECRET\\nx\"", "no single line"),
        ("current = 'gone'", "there is no context 'gone'"),
        (b"\xff", "no text in UTF-8"),
        (None, "Is a directory"),
    ],
)
def test_a_file_that_is_none_is_a_sentence_that_shows_no_secret(text: str | bytes | None, says: str, config: Path) -> None:
    config.parent.mkdir(parents=True)
    if text is None:
        config.mkdir()
    else:
        config.write_bytes(text.encode() if isinstance(text, str) else text)
    ended = run("topic", "list")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert "VERY-SECRET" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_file_lies_where_the_environment_says() -> None:
    assert path_of({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/oncelog/contexts.toml")
    for environment in ({"HOME": "/h"}, {"XDG_CONFIG_HOME": "", "HOME": "/h"}, {"XDG_CONFIG_HOME": "rel", "HOME": "/h"}):
        assert path_of(environment) == Path("/h/.config/oncelog/contexts.toml")


# --- the commands


def test_a_service_is_named_used_shown_and_forgotten(config: Path, tmp_path: Path) -> None:
    held = tmp_path / "token"
    held.write_text(f"{SECRET}\n")
    with running_service(token=SECRET) as service:
        host = service.url.removeprefix("http://")
        with Client(service.url, token=SECRET) as client:
            client.create_topic("t", namespace="shop")
        assert run("topic", "list", url=service.url).exit_code == 5
        added = run("context", "add", "prod", host, "--token", "-", "--namespace", "shop", "--use", stdin=f"{SECRET}\n")
        assert added.exit_code == 0, added.output
        assert value(run("topic", "list", "--json")) == ["t"]
        assert run("topic", "list", "--url", service.url).exit_code == 5, "its token goes where the context says"
        assert value(run("-c", "prod", "-u", host, "topic", "list", "-j")) == ["t"]

        assert run("context", "add", "prod", host).exit_code == 6
        assert run("context", "add", "prod", host, "--replace", "--token-file", str(held)).exit_code == 0
        assert load(config).known["prod"] == Context(f"http://{host}", token_file=str(held))
        assert value(run("topic", "list", "--json")) == []
        held.unlink()
        assert (gone := run("topic", "list")).exit_code == 2
        assert str(held) in gone.stderr

        assert value(run("context", "add", "other", "a:1", "--token", SECRET, "--json"))["current"] is False
        for command in (["list"], ["list", "--json"], ["show", "other"], ["show", "other", "--json"]):
            shown = run("context", *command)
            assert (shown.exit_code, SECRET in shown.output) == (0, False)
        rows = {row["option"]: row for row in value(run("context", "show", "other", "--json"))}
        assert rows["url"] == {"option": "url", "value": "http://a:1", "source": "context", "named": "other.url"}
        assert (rows["token"]["value"], rows["context"]["source"]) == ("…", "option")
        by_environment = run("context", "show", "--json", env={"ONCELOG_TOKEN": SECRET})
        assert SECRET not in by_environment.output
        config.chmod(0o640)
        assert "chmod 600" in run("context", "list").stderr

        assert run("context", "remove", "prod").exit_code == 1, "it asks first"
        assert value(run("context", "remove", "prod", "--yes", "--json")) == {"removed": "prod"}
        assert load(config) == Contexts({"other": Context("http://a:1", token=SECRET)})
        assert run("context", "use", "othr").stderr == "error: there is no context 'othr'; did you mean 'other'?\n"
        assert run("context", "use", "other").exit_code == run("context", "use", "--none").exit_code == 0
        assert load(config).current is None


@pytest.mark.parametrize("other", [Contexts(), Contexts({"prod": Context("http://other")})])
def test_what_was_put_in_the_place_of_a_context_while_it_was_asked_about_stays(
    other: Contexts, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(config, lambda _: KNOWN)

    def meanwhile(_out: object, question: str, _yes: bool) -> None:
        assert question == "Remove context prod of https://prod?"
        change(config, lambda _: other)

    monkeypatch.setattr("oncelog_service.cli.nouns.context.confirm", meanwhile)
    assert run("context", "remove", "prod").exit_code == (6 if other.known else 2)
    assert load(config) == other


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:0", "http://x:99999", "http://[", "http://a b"])
def test_what_is_no_address_is_kept_under_no_name(url: str, config: Path) -> None:
    ended = run("context", "add", "c", url)
    assert (ended.exit_code, "not the URL of a service" in ended.stderr, config.exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--namespace", "a b"], "not 'a b'"),
        (["--ca", "nowhere"], "nowhere"),
        (["--cert", "nowhere"], "nowhere"),
        (["--token-file", "nowhere"], "nowhere cannot be read: No such file"),
        (["--token-file", __file__], "is no single line of text"),
        (["--ca", __file__], "no certificate"),
    ],
)
def test_what_could_not_be_used_is_kept_under_no_name(words: list[str], says: str, config: Path) -> None:
    ended = run("context", "add", "c", "https://x", *words)
    assert (ended.exit_code, ended.stderr.count("\n"), config.exists()) == (2, 1, False)
    assert says in ended.stderr


def test_what_the_environment_says_has_no_part_in_what_is_kept(config: Path) -> None:
    environment = {"ONCELOG_TOKEN_FILE": "nowhere", "ONCELOG_CA": "nowhere", "ONCELOG_CERT": "nowhere", "ONCELOG_CONTEXT": "no"}
    assert run("context", "add", "c", "https://x", env=environment).exit_code == 0
    assert load(config) == Contexts({"c": Context("https://x")})


def test_a_service_that_is_started_heeds_no_context(config: Path) -> None:
    plain = value(run("config", "show", "--json"))
    assert run("context", "add", "prod", "x:1", "--token", SECRET, "--use").exit_code == 0
    assert value(run("config", "show", "--json")) == plain
    for words in (("--token", "x", "serve"), ("-c", "prod", "serve"), ("-u", "x", "config", "check")):
        refused = run(*words)
        assert (refused.exit_code, "is of no use" in refused.stderr) == (2, True)


def test_every_key_of_a_context_is_an_option_of_adding_one() -> None:
    told = run("context", "add", "--help").stdout
    assert [key for key in KEYS if key != "url" and f"--{key.replace('_', '-')}" not in told] == []
