"""Package clients that are small scripts, and archives made here."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from frontrank.packages import Package

UNKNOWN_NPM = """\
npm error code ETARGET
npm error notarget No matching version found for thing@1.0.
npm error notarget In most cases you or one of your dependencies are requesting a package version that doesn't exist.
npm error A complete log of this run can be found in: .npm/_logs/debug-0.log
"""
OFFLINE_NPM = """\
npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://somewhere/thing failed, reason: connect ECONNREFUSED 127.0.0.1:9
npm error     at ClientRequest.<anonymous> (/usr/lib/node_modules/npm/index.js:130:14)
npm error If you are behind a proxy, please make sure that the 'proxy' config is set properly.
"""
UNKNOWN_PIP = """\
ERROR: Could not find a version that satisfies the requirement thing==1.0 (from versions: 0.1.0)
ERROR: No matching distribution found for thing==1.0
"""
OTHER_APT = "E: Version '1.0' for 'thing' was not found\n"
UNKNOWN_APT = "E: Unable to locate package thing\n"
OFFLINE_APT = """\
Err:1 http://somewhere bookworm InRelease
  Temporary failure resolving 'somewhere'
E: Failed to fetch http://somewhere/InRelease  Temporary failure resolving 'somewhere'
"""


def client(folder, name, *lines):
    """An executable of this name whose calls are logged in `folder/calls`, one line each."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    head = ["#!/bin/sh", "PATH=/usr/bin:/bin", f'echo {name} "$@" >> "{folder}/calls"']
    path.write_text("\n".join([*head, *lines]) + "\n")
    path.chmod(0o755)


def calls(folder):
    log = folder / "calls"
    return log.read_text().splitlines() if log.exists() else []


def saying(text, status=1):
    """Lines of a client that complains."""
    return [f"cat >&2 <<'END'\n{text}END", f"exit {status}"]


def tgz(files):
    """A .tgz of names and contents."""
    return tar(files, "w:gz")


def tar(files, mode):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return made.getvalue()


def whl(files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return made.getvalue()


def deb(data, name="data.tar.xz"):
    """An ar archive as of Debian: version, control, data. The control part has an odd length, and so padding."""
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": b"odd", name: data}
    made = b"!<arch>\n"
    for part, content in parts.items():
        made += f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        made += b"\n" * (len(content) % 2)
    return made


def package(content, kind="npm", name="thing", version="1.0", megabytes=0.001):
    return Package(kind, name, version, hashlib.sha256(content).hexdigest(), megabytes)


def stored(folder: Path, name: str, content: bytes) -> Path:
    """A file for a client to copy."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name
