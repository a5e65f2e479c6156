"""The console's page and its files as they are answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import requests

from oncelog_service.console import files
from oncelog_service.console.files import VENDORED, console_files
from oncelog_service.rest.handlers.console import POLICY
from tests.rest.talk import TIMEOUT
from tests.world.service import RunningService, running_service

STATIC = Path(files.__file__).with_name("static")
TOKEN = "a-token-that-nobody-gives"


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningService]:
    """It answers nobody without a token."""
    with running_service(token=TOKEN) as running:
        yield running


def get(url: str, **headers: str) -> requests.Response:
    return requests.get(url, headers=headers, timeout=TIMEOUT)


def test_the_page_and_all_its_files_are_there_without_a_token(locked: RunningService) -> None:
    assert get(locked.url + "/v1/namespaces").status_code == 401
    for name in ["", *(f"/{each}" for each in console_files())]:
        answer = get(locked.url + "/console" + name)
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        kind = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert answer.headers["content-type"].startswith(kind[(name or "html").rpartition(".")[2]])
        assert answer.content == (STATIC / (name[1:] or "index.html")).read_bytes()


def test_the_policy_lets_nothing_in_but_the_services_own_files() -> None:
    assert POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_who_has_a_file_is_sent_nothing(locked: RunningService) -> None:
    first = get(locked.url + "/console/app.js")
    again = get(locked.url + "/console/app.js", **{"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert "content-length" not in again.headers
    assert get(locked.url + "/console/app.js", **{"If-None-Match": '"other"'}).content == first.content


@pytest.mark.parametrize(
    "name", ["missing.js", "..%2ffiles.py", "../files.py", "%2e%2e/__init__.py", "vendor", "vendor/", "", "//"]
)
def test_no_other_file_is_sent(locked: RunningService, name: str) -> None:
    with requests.Session() as session:
        request = requests.Request("GET", locked.url).prepare()
        request.url = f"{locked.url}/console/{name}"
        assert session.send(request, timeout=TIMEOUT).status_code in (400, 401, 404)


@pytest.mark.parametrize("beside", ["/consoles", "/console.js", "/v1/console/app.js"])
def test_nothing_beside_it_is_open(locked: RunningService, beside: str) -> None:
    assert get(locked.url + beside).status_code == 401


def test_what_others_keep_is_as_their_packages_have_it() -> None:
    vendored = {f"vendor/{path.name}": sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    assert vendored == {name: each.sha256 for name, each in VENDORED.items()}


def test_each_of_their_licences_goes_with_them() -> None:
    texts = {path.stem: path.read_text("utf-8") for path in STATIC.with_name("licences").iterdir()}
    assert texts.keys() == {each.package for each in VENDORED.values()} | {"preact"}  # which htm's file holds
    assert all("Copyright" in text for text in texts.values())


def test_every_file_is_sent() -> None:
    assert set(console_files()) == {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}


OWN = sorted(name for name in console_files() if not name.startswith("vendor/"))


@pytest.mark.parametrize("name", OWN)
def test_nothing_that_is_said_becomes_markup_or_code(name: str) -> None:
    text = (STATIC / name).read_text("utf-8")
    assert not re.findall(r"innerHTML\s*=|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:", text)
    assert not re.findall(r"dangerouslySet|\bstyle=", text), "a style in the page is refused by the policy"
    outside = [each for each in re.findall(r"https?://[^\s\"'`)]+", text) if each != "http://www.w3.org/2000/svg"]
    assert outside == [], "nothing is loaded from elsewhere"


def test_all_that_a_module_imports_is_there() -> None:
    for name in OWN:
        if name.endswith(".js"):
            for target in re.findall(r'^import .* from "([^"]+)"', (STATIC / name).read_text("utf-8"), re.MULTILINE):
                assert (STATIC / name).parent.joinpath(target).resolve().is_file(), (name, target)
