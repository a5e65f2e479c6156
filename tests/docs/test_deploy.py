"""The files in deploy/: what they name is there, ports and times agree, and nobody runs as root."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from oncelog_service.config import Settings
from oncelog_service.rest.server import _STOP_SECONDS
from oncelog_service.rest.table import ROUTES
from tests.behaviours.cli.test_documented import COMMANDS, _options
from tests.behaviours.cli.test_documented import ROOT as CLI
from tests.docs.pages import ROOT

DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8")
FILES = [DEPLOY / name for name in ("Containerfile", "compose.yaml", "oncelog.service")]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VARIABLES = {f"ONCELOG_{name.upper()}" for name in Settings.model_fields}
PROBES = {route.path for route in ROUTES if route.method == "GET"}


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile: (instruction, what it says), continued lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def last(word: str) -> str:
    return [rest for found, rest in instructions() if found == word][-1]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for found, rest in instructions() if found == "ENV" for pair in rest.split())


def manifests(name: str | None = None) -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        if name in (None, path.stem):
            yield from yaml.safe_load_all(path.read_text("utf-8"))


def pods() -> list[dict[str, Any]]:
    return [each["spec"] for each in manifests() if each["kind"] in ("StatefulSet", "Deployment")]


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


# --- what is named is there


def test_every_variable_that_a_file_names_is_a_setting() -> None:
    for path in (*FILES, *MANIFESTS):
        named = set(re.findall(r"\bONCELOG_[A-Z_]+", path.read_text("utf-8")))
        assert named, path
        assert named <= VARIABLES, path


def test_every_command_and_option_that_a_file_names_is_there() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["oncelog"]
    assert f"oncelog {json.loads(last('CMD'))[0]}" in COMMANDS
    known = _options(COMMANDS["oncelog serve"]) | _options(CLI)
    (started,) = re.findall(r"^ExecStart=\S+/oncelog serve (.*)$", (DEPLOY / "oncelog.service").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", started)) <= known
    for pod in pods():
        (container,) = pod["template"]["spec"]["containers"]
        assert container["args"] == ["serve"]


def test_what_the_image_is_made_from_is_there_and_its_settings_are_some() -> None:
    for _, sources in [each for each in instructions() if each[0] == "COPY" and "--from" not in each[1]]:
        *files, _ = sources.split()
        assert [file for file in files if not (ROOT / file).exists()] == []
    extras = re.search(r'"\.\[([a-z,]+)\]"', CONTAINERFILE)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert set(extras[1].split(",")) <= set(re.findall(r"^([a-z]+) = \[", project, re.MULTILINE))
    ours = {name.removeprefix("ONCELOG_").lower(): value for name, value in image_environment().items() if name in VARIABLES}
    settings = Settings(**ours)  # raises for what is none
    assert str(settings.port) == last("EXPOSE")
    assert settings.store.startswith(f"leveldb://{last('VOLUME')}/")


# --- nobody is root, no secret lies about


def test_nobody_runs_as_root_and_nothing_is_writable_that_need_not_be() -> None:
    user = last("USER").split(":")[0]
    assert int(user) > 0
    assert f"--uid {user} " in last("RUN")
    assert CONTAINERFILE.index("\nUSER ") > CONTAINERFILE.rindex("\nRUN ")
    for pod in pods():
        spec = pod["template"]["spec"]
        assert (spec["securityContext"]["runAsNonRoot"], str(spec["securityContext"]["runAsUser"])) == (True, user)
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable <= {last("VOLUME")}
    for name, service in compose()["services"].items():
        if name != "postgres":
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def test_secrets_come_as_files_and_none_stands_anywhere() -> None:
    secret = re.compile(r"ONCELOG_(TOKEN|TRANSACTIONS_TOKEN)\b(?!_)|_PASSWORD\b(?!_)")
    for path in (*FILES, *MANIFESTS):
        assert secret.search(path.read_text("utf-8")) is None, path
    for each in manifests():
        if each["kind"] == "Secret":
            assert all("REPLACE-ME" in value for value in each["stringData"].values())
    named = compose()["secrets"].keys()
    for name, service in compose()["services"].items():
        assert set(service["secrets"]) <= named
        files = [value for value in service["environment"].values() if value.startswith("/run/secrets/")]
        assert {value.removeprefix("/run/secrets/") for value in files} == set(service["secrets"]), name


def test_files_of_secrets_are_mounted_where_the_settings_look_for_them() -> None:
    for name in ("leveldb", "postgresql"):
        (secret,) = [each for each in manifests(name) if each["kind"] == "Secret"]
        (pod,) = [each["spec"]["template"]["spec"] for each in manifests(name) if each["kind"] in ("StatefulSet", "Deployment")]
        (container,) = pod["containers"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "secrets"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == "secrets"]
        assert volume["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
        files = {value for name, value in environment_of(container).items() if name.endswith("_FILE")}
        assert files == {f"{mount['mountPath']}/{key}" for key in secret["stringData"]}


# --- ports, probes, times


def test_ports_and_labels_agree() -> None:
    port = int(last("EXPOSE"))
    for name in ("leveldb", "postgresql"):
        found = {each["kind"]: each for each in manifests(name)}
        pod = found.get("StatefulSet") or found["Deployment"]
        (container,) = pod["spec"]["template"]["spec"]["containers"]
        assert container["ports"] == [{"name": "http", "containerPort": port}]
        assert found["Service"]["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
        labels = pod["spec"]["template"]["metadata"]["labels"]
        assert found["Service"]["spec"]["selector"] == pod["spec"]["selector"]["matchLabels"] == labels
        if "PodDisruptionBudget" in found:
            assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    for name, service in compose()["services"].items():
        if name != "postgres":
            assert service["environment"]["ONCELOG_ADVERTISED_URL"] == f"http://{name}:{port}"
            assert service["ports"][0].endswith(f":{port}")


def test_the_service_of_that_name_sets_no_setting_in_its_pods() -> None:
    for name in ("leveldb", "postgresql"):
        found = {each["kind"]: each for each in manifests(name)}
        linked = f"{found['Service']['metadata']['name'].upper()}_PORT"  # of a service link (Kubernetes, as of Docker's --link)
        pod = (found.get("StatefulSet") or found["Deployment"])["spec"]["template"]["spec"]
        assert linked not in VARIABLES or pod["enableServiceLinks"] is False


def test_probes_ask_addresses_that_are_there_and_the_right_ones() -> None:
    (asked,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", last("HEALTHCHECK"))
    assert asked == (last("EXPOSE"), "/readyz")
    for pod in pods():
        (container,) = pod["template"]["spec"]["containers"]
        paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/readyz", "liveness": "/livez", "readiness": "/readyz"}
        assert set(paths.values()) <= PROBES
        assert {container[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {"http"}


def test_whoever_ends_it_waits_longer_than_a_stop_may_take_and_notices_before_it_takes_no_more() -> None:
    for pod in pods():
        spec = pod["template"]["spec"]
        (container,) = spec["containers"]
        drain = float(environment_of(container)["ONCELOG_DRAIN_SECONDS"])
        assert spec["terminationGracePeriodSeconds"] >= drain + _STOP_SECONDS + 30
        probe = container["readinessProbe"]
        assert drain > probe["periodSeconds"] * probe["failureThreshold"]
    drain = float(image_environment()["ONCELOG_DRAIN_SECONDS"])
    assert int(compose()["x-oncelog"]["stop_grace_period"].removesuffix("s")) >= drain + _STOP_SECONDS + 30


@pytest.mark.parametrize(("name", "kind", "replicas"), [("leveldb", "StatefulSet", 1), ("postgresql", "Deployment", 2)])
def test_leveldb_has_one_replica_and_postgresql_two(name: str, kind: str, replicas: int) -> None:
    (pod,) = [each for each in manifests(name) if each["kind"] == kind]
    assert pod["spec"]["replicas"] == replicas
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    variables = environment_of(container)
    if kind == "StatefulSet":
        (claim,) = pod["spec"]["volumeClaimTemplates"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert variables["ONCELOG_STORE"].startswith(f"leveldb://{mounts[claim['metadata']['name']]}/")
    else:
        assert pod["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        (secret,) = [each for each in manifests(name) if each["kind"] == "Secret"]
        Settings(store=secret["stringData"]["store"])
