"""Rules of this house that a machine can look after: no circles of imports, no huge function, a word on every module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
OWN_TIME = ("sdk/oncelog/process/clock.py", "sdk/oncelog/spark/")
"""Where none of a client's is: what a clock is made of, and what Spark's own processes do."""
SERVICE_TIME = (
    "service/oncelog_service/clock.py",
    "service/oncelog_service/workers.py",  # where they sleep
    "service/oncelog_service/cli/",
    "service/oncelog_service/cluster/unserved.py",  # of commands, which block
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


class Module(NamedTuple):
    """What the rules ask of a module, gathered in one walk through it: whole trees of all modules are too much to keep."""

    says: str | None
    """Its docstring."""
    lines: Mapping[str, int]
    """Of each function, methods and nested ones too."""
    parameters: Mapping[str, int]
    imports: set[str]
    """All names that it imports, anywhere in it, for type checkers too."""
    taken: set[str]
    """Private members that it uses and does not define itself: of other modules, or of libraries."""
    times: set[str]
    """What it asks the machine itself for the time."""
    threads: bool
    """Whether it begins threads, or makes a pool of them."""


def gathered(text: str) -> Module:
    tree = ast.parse(text)
    by_kind: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree):
        by_kind[type(node)].append(node)
    functions = by_kind[ast.FunctionDef] + by_kind[ast.AsyncFunctionDef]
    called = {getattr(each.func, "id", None) or getattr(each.func, "attr", None) for each in by_kind[ast.Call]}
    imports = {alias.name for node in by_kind[ast.Import] for alias in node.names}
    for node in by_kind[ast.ImportFrom]:
        imports.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)) if node.module else ())
    return Module(
        ast.get_docstring(tree),
        {f"{each.name}, line {each.lineno}": each.end_lineno - each.lineno + 1 for each in functions},
        {f"{each.name}, line {each.lineno}": parameters(each) for each in functions},
        imports,
        taken(by_kind),
        {name for name in imports if name.startswith("time.") and name[5:] in TIMES} | asked(by_kind[ast.Attribute]),
        not called.isdisjoint(("Thread", "Threads", "ThreadPoolExecutor")),
    )


def parameters(function: ast.FunctionDef) -> int:
    positional = [*function.args.posonlyargs, *function.args.args]
    return len(positional) - (bool(positional) and positional[0].arg in ("self", "cls"))


def taken(by_kind: Mapping[type[ast.AST], list[Any]]) -> set[str]:
    defined = {node.name for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef) for node in by_kind[kind]}
    defined |= {node.id for node in by_kind[ast.Name] if isinstance(node.ctx, ast.Store)}
    used = set()
    for node in by_kind[ast.Attribute]:
        if node.attr.startswith("_") and not node.attr.endswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (defined if own and isinstance(node.ctx, ast.Store) else set() if own else used).add(node.attr)
    return used - defined - {"_asdict", "_fields", "_make", "_replace"}  # which are no secret of a named tuple


def asked(attributes: list[ast.Attribute]) -> set[str]:
    of = {"time": TIMES, "datetime": {"now", "utcnow"}}
    named = ((node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name))
    return {f"{module}.{name}" for module, name in named if name in of.get(module, ())}


@cache
def modules() -> Mapping[str, Module]:
    """The product's."""
    paths = [path for root in PRODUCT for path in sorted((ROOT / root).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): gathered(path.read_text("utf-8")) for path in paths}


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


def test_a_circle_is_found_where_there_is_one() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Packages do not count."""
    names = {path: path.partition("/")[2].removesuffix(".py").replace("/", ".") for path in modules()}
    known = {name for name in names.values() if not name.endswith("__init__")}
    graph = {name: modules()[path].imports & known - {name} for path, name in names.items()}
    assert len(graph) > 200
    assert sum(map(len, graph.values())) > 1_000
    assert circle(graph) == []


def test_no_function_is_longer_than_a_screen_or_takes_more_parameters_than_one_remembers() -> None:
    for path, module in modules().items():
        assert {name: lines for name, lines in module.lines.items() if lines > MOST_LINES} == {}, path
        assert {name: count for name, count in module.parameters.items() if count > MOST_PARAMETERS} == {}, path


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path, module in modules().items() if module.says is None] == []


def test_no_module_takes_a_private_member_of_another_one() -> None:
    found = {path: module.taken - PRIVATE.get(path, set()) for path, module in modules().items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_clients_and_services_ask_their_clocks_and_no_others() -> None:
    found = {path: module.times for path, module in modules().items() if module.times and not path.startswith("dedup/")}
    assert {path: names for path, names in found.items() if not path.startswith(OWN_TIME + SERVICE_TIME)} == {}
    assert [place for place in SERVICE_TIME if not any(path.startswith(place) for path in found)] == []


def test_a_service_begins_no_threads_but_is_handed_workers() -> None:
    of_commands = ("service/oncelog_service/cli/", "service/oncelog_service/testing/")
    found = {path for path, module in modules().items() if module.threads and not path.startswith(of_commands)}
    assert {path for path in found if path.startswith("service/")} == SERVICE_THREADS


def test_what_the_rules_are_about_is_found() -> None:
    found = gathered(
        "import time\nfrom time import perf_counter, gmtime\nbegan = time.monotonic()\nself.time.sleep(1)\nat = datetime.now(UTC)"
    )
    assert found.times == {"time.monotonic", "time.perf_counter", "datetime.now"}
    assert gathered("other._lock.acquire()\nself._own = 1\nx._own").taken == {"_lock"}
    found = gathered("class A:\n  def f(self, a, /, b, *, c):\n    def g(): pass\n    return pool.ThreadPoolExecutor()")
    assert (found.parameters, found.threads) == ({"f, line 2": 2, "g, line 3": 0}, True)
    assert found.lines == {"f, line 2": 3, "g, line 3": 1}
