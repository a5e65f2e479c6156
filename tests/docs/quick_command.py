"""`oncelog` for shells that call it dozens of times: the real command line, forked from a process that has loaded it already."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_SERVER = """
import json, os, signal, socket, sys
from importlib import import_module
from oncelog_service.cli import COMMANDS, main
for module, _ in COMMANDS.values():
    import_module("oncelog_service.cli." + module)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[1])
server.listen(64)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    asker, _ = server.accept()
    if os.fork():
        asker.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server.close()
    data, files, *_ = socket.recv_fds(asker, 2**20, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    folder, environment, arguments = json.loads(data)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["oncelog", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = 1
        print(repr(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    asker.send(b"%d" % code)
    os._exit(0)
"""
_COMMAND = """#!{python} -IS
import json, os, socket, sys
asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asker.connect({address!r})
socket.send_fds(asker, [json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()], [0, 1, 2])
for file in (0, 1):
    os.close(file)
sys.exit(int(asker.recv(10)))
"""


@cache
def quick_command() -> Path:
    """The folder of an `oncelog` that needs no second to start; for PATH."""
    folder = tempfile.TemporaryDirectory(prefix="oncelog-docs-")
    address = f"{folder.name}/socket"
    server = subprocess.Popen([sys.executable, "-c", _SERVER, address], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.kill()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    command = Path(folder.name, "bin", "oncelog")
    command.parent.mkdir()
    command.write_text(_COMMAND.format(python=sys.executable, address=address))
    command.chmod(0o755)
    return command.parent
