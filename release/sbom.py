"""What is in oncelog that others keep, as a bill of materials in CycloneDX.

Two of them: of the libraries that lie in the wheel itself, for the console, which goes into the wheel (PEP 770) and is checked
in; and of an installation with all extras, which a release has beside the wheel. The latter is made by cyclonedx-py of what is
installed, and the former is put into it. Neither names a time or a number of its own, so both can be made again.

`python -m release.sbom` writes the first one anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oncelog_service.console.files import VENDORED, Vendored

ROOT = Path(__file__).parent.parent
IN_WHEEL = ROOT / "service/oncelog_service/console/oncelog-console.cdx.json"
Bom = dict[str, Any]
_PREACT = {
    "type": "library",
    "bom-ref": "console:preact",
    "name": "preact",
    "description": "As the file of htm holds it",
    "licenses": [{"license": {"id": "MIT"}}],
    "purl": "pkg:npm/preact",
}


def of_console() -> Bom:
    """The libraries under the console's vendor/, each with its files as they lie there."""
    packages: dict[str, dict[str, Vendored]] = {}
    for name, each in VENDORED.items():
        packages.setdefault(each.package, {})[name] = each
    components = [_library(package, files) for package, files in packages.items()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "oncelog-console", "name": "oncelog-console"}},
        "components": [*components, _PREACT],
        "dependencies": [
            {"ref": "oncelog-console", "dependsOn": [each["bom-ref"] for each in components]},
            {"ref": "console:htm", "dependsOn": ["console:preact"]},
        ],
    }


def _library(package: str, files: dict[str, Vendored]) -> Bom:
    any_file = next(iter(files.values()))
    return {
        "type": "library",
        "bom-ref": f"console:{package}",
        "name": package,
        "version": any_file.version,
        "licenses": [{"license": {"id": any_file.licence.partition(" ")[0]}}],
        "purl": f"pkg:npm/{package}@{any_file.version}",
        "components": [
            {
                "type": "file",
                "bom-ref": f"console:{package}/{each.path}",
                "name": f"oncelog_service/console/static/{name}",
                "hashes": [{"alg": "SHA-256", "content": each.sha256}],
            }
            for name, each in files.items()
        ],
    }


def of_installation(cyclonedx: Path, python: Path) -> Bom:
    """All that is installed beside this Python, and what lies in oncelog itself; oncelog is what it is of.

    ``cyclonedx``: the program cyclonedx-py, which holds it against the standard's schema.
    """
    command = [str(cyclonedx), "environment", "--output-reproducible", "--validate", "--spec-version", "1.6", str(python)]
    return with_console(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def with_console(bom: Bom) -> Bom:
    """Puts what lies in the wheel into the bill of an installation, below oncelog. Raises ValueError: oncelog is not in it."""
    console = of_console()
    ours = [each for each in bom["components"] if each["name"] == "oncelog"]
    if len(ours) != 1:
        raise ValueError("oncelog is not among the components")
    ref = ours[0]["bom-ref"]
    others = [each for each in bom["components"] if each["name"] != "oncelog"]
    own, *beneath = console["dependencies"]
    depends = [
        {**each, "dependsOn": sorted({*each.get("dependsOn", ()), *own["dependsOn"]})} if each["ref"] == ref else each
        for each in bom["dependencies"]
    ]
    return {
        **bom,
        "metadata": {**bom.get("metadata", {}), "component": {**ours[0], "type": "application"}},
        "components": _sorted([*others, *console["components"]]),
        "dependencies": [*depends, *beneath],
    }


def _sorted(components: Iterable[Bom]) -> list[Bom]:
    return sorted(components, key=lambda each: str(each["bom-ref"]))


def text_of(bom: Bom) -> str:
    """As it is written to a file."""
    return json.dumps(bom, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    IN_WHEEL.write_text(text_of(of_console()), "utf-8")
    sys.stdout.write(f"{IN_WHEEL}\n")
