"""Wheel and sdist: the same bytes whoever builds them, whole, and of use where nothing else of the project is."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from release.__main__ import CONSTRAINTS, TOOLS
from release.building import Differs, build_twice, hashes
from release.sbom import of_installation
from release.trying import Broken, Installed, try_sdk, try_service, try_typing, versions_of

import oncelog
from oncelog_service.storage.open import has_leveldb
from tests.docs.pages import ROOT

pytestmark = pytest.mark.real
PACKAGES = ("oncelog", "oncelog_dedup", "oncelog_service", "pyspark_oncelog")


TAKES_THE_TIME = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "x"
version = "1"
dynamic = ["description"]
[tool.hatch.metadata.hooks.custom]
"""
HOOK = """
import time
from hatchling.metadata.plugin.interface import MetadataHookInterface
class Hook(MetadataHookInterface):
    def update(self, metadata):
        metadata["description"] = str(time.time_ns())
"""


def commit(tree: Path) -> None:
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tree, check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheel and sdist of the files as they lie here, committed or not."""
    place = tmp_path_factory.mktemp("built")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tree = place / "tree"
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    commit(tree)
    return build_twice(tree, "HEAD", place / "work", place / "dist")


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> Path:
    return next(each for each in built if each.suffix == ".whl")


def test_what_is_built_is_one_wheel_and_one_sdist_with_their_hashes(built: list[Path]) -> None:
    begin = f"oncelog-{oncelog.__version__}"
    assert [each.name for each in built] == [f"{begin}-py3-none-any.whl", f"{begin}.tar.gz"]
    (built[0].parent / "SHA256SUMS").write_text(hashes(built))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built[0].parent, check=True, capture_output=True)


def test_a_build_that_takes_the_time_is_found(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "x").mkdir(parents=True)
    (tree / "x/__init__.py").touch()
    (tree / "pyproject.toml").write_text(TAKES_THE_TIME)
    (tree / "hatch_build.py").write_text(HOOK)
    commit(tree)
    with pytest.raises(Differs, match="is not the same when it is built again"):
        build_twice(tree, "HEAD", tmp_path / "work", tmp_path / "dist")


def test_the_wheel_has_all_packages_with_their_types_and_what_others_have_written_with_its_licence(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, f"oncelog-{oncelog.__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    info = f"oncelog-{oncelog.__version__}.dist-info"
    assert {f"{info}/licenses/LICENSE", f"{info}/sboms/oncelog-console.cdx.json"} <= names
    assert {f"oncelog_service/console/licences/{each}.txt" for each in ("htm", "preact", "uplot")} <= names
    packed = [Path(name) for name in names if not name.startswith(info)]
    assert {each.suffix for each in packed} == {".avsc", ".css", ".html", ".js", ".json", ".py", ".svg", ".txt", ".typed"}
    assert not [each for each in packed if "tests" in each.parts or each.name.startswith((".", "test_", "conftest"))]


def test_the_sdist_has_what_is_needed_to_build_to_test_and_to_read_and_nothing_hidden(built: list[Path]) -> None:
    with tarfile.open(built[1]) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    for name in (
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "tests/conftest.py",
        "docs/cli.md",
        "release/readme.py",
    ):
        assert name in names
    assert [name for name in names if name.startswith(".")] == [".gitignore"]


def test_its_metadata_are_valid_and_its_readme_leads_nowhere_that_is_not_there(wheel: Path) -> None:
    raw = ZipFile(wheel).read(f"oncelog-{oncelog.__version__}.dist-info/METADATA")
    metadata = Metadata.from_email(raw, validate=True)
    assert (str(metadata.version), metadata.license_expression) == (oncelog.__version__, "Apache-2.0")
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in (metadata.classifiers or [])
    assert metadata.description_content_type == "text/markdown"
    tokens = MarkdownIt("commonmark").enable("table").parse(str(message_from_bytes(raw).get_payload(decode=True), "utf-8"))
    assert any(token.type == "table_open" for token in tokens)
    inline = [child for token in tokens for child in token.children or ()]
    links = [str(child.attrs["href"]) for child in inline if child.type == "link_open"]
    assert all(link.startswith(("http:", "https:")) for link in links), links
    assert not [child for child in inline if child.type == "text" and "](" in child.content]


def test_the_sdk_alone_brings_four_dependencies_and_the_command_says_what_it_lacks(wheel: Path, tmp_path: Path) -> None:
    alone = Installed(tmp_path)
    alone.install(wheel, CONSTRAINTS)
    try_sdk(alone)


def test_a_service_that_was_installed_serves_and_its_bill_names_all_of_it(wheel: Path, tmp_path: Path) -> None:
    service = Installed(tmp_path)
    service.install(wheel, CONSTRAINTS, "service")
    with pytest.raises(Broken, match="the SDK alone brings"):
        try_sdk(service)
    store = try_service(service, oncelog.__version__)
    assert store.partition(":")[0] == ("leveldb" if has_leveldb() else "sqlite")
    try_typing(service, [sys.executable, "-m", "mypy"])
    tool = tmp_path / "tool"
    subprocess.run([sys.executable, "-m", "venv", str(tool)], check=True)
    command = [str(tool / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(TOOLS)]
    subprocess.run(command, check=True)
    bom = of_installation(tool / "bin/cyclonedx-py", service.bin / "python")
    assert {each["name"].lower().replace("_", "-") for each in bom["components"]} == (
        service.packages() - {"oncelog"} | {"htm", "preact", "uplot"}
    )
    assert bom["metadata"]["component"]["version"] == oncelog.__version__
    assert json.dumps(bom) == json.dumps(of_installation(tool / "bin/cyclonedx-py", service.bin / "python")), "made again"


def test_constraints_are_versions_without_hashes_and_extras() -> None:
    pinned = (
        "a[b]==1 ; python_version < '3' \\\n    --hash=sha256:0\nc==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n# said\n"
    )
    assert versions_of(pinned) == "a==1 ; python_version < '3'\nc==2\n"
