"""Rules of this house that a machine can look after: no circles of imports, no huge function, a word on every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("sdk", "service", "dedup")

MOST_LINES = 70
MOST_PARAMETERS = 8
"""Of one function; keyword-only parameters do not count, and neither does ``self``."""

PRIVATE: Mapping[str, set[str]] = {
    "sdk/oncelog/process/errands.py": {"_lock"},
    "sdk/oncelog/process/forks.py": {"_at_fork_reinit", "_is_owned"},
    "sdk/oncelog/spark/connection.py": {"_at_fork_reinit"},
}
"""Modules that use private members of other modules or of libraries (threading), and which. It only gets shorter."""


TIMES = {
    "clock_gettime",
    "clock_gettime_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
    "time",
    "time_ns",
}
"""Of the module ``time``, what a client asks its clock for."""
OWN_TIME = ("sdk/oncelog/process/", "sdk/oncelog/spark/")
"""Where none of a client's is: what a process has once, and what Spark's own processes do."""
SERVICE_TIME = (
    "service/oncelog_service/clock.py",
    "service/oncelog_service/workers.py",  # where they sleep
    "service/oncelog_service/cli/",
    "service/oncelog_service/cluster/unserved.py",  # of commands, which block
    "service/oncelog_service/engine/shared.py",  # threads of somebody's process wait for an engine
    "service/oncelog_service/process/supervisor.py",  # systemd wants this very clock
    "service/oncelog_service/storage/files/leveldb.py",  # until a file is gone
    "service/oncelog_service/storage/incarnation.py",  # a note that people read
    "service/oncelog_service/storage/sql/sqlite.py",  # until a lock on a file is free
    "service/oncelog_service/telemetry/exporting.py",  # stamps of what leaves
)
"""Where the machine is asked for the time in the service."""


SERVICE_THREADS = {
    "service/oncelog_service/access/audit.py",  # a file's, where there is one
    "service/oncelog_service/cluster/unserved.py",  # of commands, which block
    "service/oncelog_service/engine/engine.py",  # a service on a thread of somebody's process
    "service/oncelog_service/logs.py",  # of the process, for stderr
    "service/oncelog_service/telemetry/exporting.py",  # for a collector, where there is one
    "service/oncelog_service/threads.py",
    "service/oncelog_service/workers.py",
}
"""Who begins threads in the service; everybody else is handed workers."""


class Function(NamedTuple):
    """What is measured of a function."""

    name: str
    """Its file and its qualified name."""
    lines: int
    parameters: int


@cache
def modules() -> Mapping[Path, ast.Module]:
    """The product's modules, parsed."""
    return {path: ast.parse(path.read_text("utf-8")) for root in PRODUCT for path in sorted((ROOT / root).rglob("*.py"))}


def functions(path: Path, node: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[Function]:
    """All functions in a module, methods and nested ones too."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(path, child, outer)
            continue
        inner = (*outer, child.name)
        if not isinstance(child, ast.ClassDef):
            positional = [*child.args.posonlyargs, *child.args.args]
            parameters = len(positional) - (bool(positional) and positional[0].arg in ("self", "cls"))
            name = f"{path.relative_to(ROOT)}:{'.'.join(inner)}"
            yield Function(name, (child.end_lineno or 0) - child.lineno + 1, parameters)
        yield from functions(path, child, inner)


def measured() -> list[Function]:
    """All functions of the product."""
    return [function for path, tree in modules().items() for function in functions(path, tree)]


def dotted(path: Path) -> str:
    """A module's name, as it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported() -> dict[str, set[str]]:
    """module → modules of the product that it imports, anywhere in it, for type checkers too. Packages do not count."""
    names = {dotted(path) for path in modules() if path.name != "__init__.py"}
    graph: dict[str, set[str]] = {}
    for path, tree in modules().items():
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        graph[dotted(path)] = found & names - {dotted(path)}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports the next one, and the last one the first; none where there is no circle."""
    done: set[str] = set()

    def search(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module not in done:
            for other in sorted(graph.get(module, ())):
                if found := search(other, [*way, module]):
                    return found
            done.add(module)
        return []

    return next(filter(None, (search(module, []) for module in graph)), [])


def taken(tree: ast.Module) -> set[str]:
    """Private members that a module uses and does not define itself: of other modules, or of libraries."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (defined if own and isinstance(node.ctx, ast.Store) else set() if own else used).add(node.attr)
    return used - defined - {"_asdict", "_fields", "_make", "_replace"}  # which are no secret of a named tuple


def times(tree: ast.Module) -> set[str]:
    """What a module asks the machine itself for the time."""
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if (node.value.id == "time" and node.attr in TIMES) or (node.value.id == "datetime" and node.attr in ("now", "utcnow"))
    }
    named = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    }
    return asked | named & TIMES


def test_a_circle_is_found_where_there_is_one() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = imported()
    assert len(graph) > 200
    assert circle(graph) == []


def test_no_function_is_longer_than_a_screen() -> None:
    assert {function.name: function.lines for function in measured() if function.lines > MOST_LINES} == {}


def test_no_function_takes_more_parameters_than_one_remembers() -> None:
    assert {function.name: function.parameters for function in measured() if function.parameters > MOST_PARAMETERS} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [str(path.relative_to(ROOT)) for path, tree in modules().items() if ast.get_docstring(tree) is None] == []


def test_no_module_takes_a_private_member_of_another_one() -> None:
    found = {str(path.relative_to(ROOT)): taken(tree) for path, tree in modules().items()}
    assert {name: names for name, names in found.items() if names - PRIVATE.get(name, set())} == {}


def test_a_private_member_that_is_taken_is_found() -> None:
    assert taken(ast.parse("other._lock.acquire()\nself._own = 1\nx._own")) == {"_lock"}


def test_a_client_asks_its_clock_and_no_other() -> None:
    found = {str(path.relative_to(ROOT)): times(tree) for path, tree in modules().items()}
    assert {
        name: found[name] for name in found if name.startswith("sdk/") and not name.startswith(OWN_TIME) and found[name]
    } == {}


def test_a_service_asks_its_clock_and_no_other() -> None:
    found = {str(path.relative_to(ROOT)): times(tree) for path, tree in modules().items()}
    assert {
        name: found[name] for name in found if name.startswith("service/") and not name.startswith(SERVICE_TIME) and found[name]
    } == {}
    asking = {name for name in found if found[name]}
    assert [name for name in SERVICE_TIME if not any(each.startswith(name) for each in asking)] == []


def threads(tree: ast.Module) -> bool:
    """Whether a module begins threads, or makes a pool of them."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {
        each.id if isinstance(each, ast.Name) else each.attr for each in called if isinstance(each, ast.Name | ast.Attribute)
    }
    return not names.isdisjoint(("Thread", "Threads", "ThreadPoolExecutor"))


def test_a_service_begins_no_threads_but_is_handed_workers() -> None:
    found = {str(path.relative_to(ROOT)) for path, tree in modules().items() if threads(tree)}
    of_commands = ("service/oncelog_service/cli/", "service/oncelog_service/testing/")
    assert {name for name in found if name.startswith("service/") and not name.startswith(of_commands)} == SERVICE_THREADS


def test_who_asks_the_machine_for_the_time_is_found() -> None:
    assert times(ast.parse("import time\nbegan = time.monotonic()\nself.time.sleep(1)")) == {"monotonic"}
    assert times(ast.parse("from time import perf_counter, gmtime\nat = datetime.now(UTC)")) == {"perf_counter", "now"}
