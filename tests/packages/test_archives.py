"""Reading files out of archives: every format, damage, and archives that were made to do harm."""

import io
import stat
import tarfile
import zipfile

import pytest

from frontrank import packages as archives
from frontrank.errors import InputError
from frontrank.packages import members
from tests.errors import refusal
from tests.packages.fakes import deb, tar, tgz, whl

FILES = {"package/a.svg": b"<svg/>", "package/deep/b.json": b"{}", "package/empty": b"", "other/c.svg": b"x" * 5000}
MAKERS = {
    "tgz": tgz,
    "whl": whl,
    "deb.xz": lambda files: deb(tar(files, "w:xz")),
    "deb.gz": lambda files: deb(tar(files, "w:gz"), "data.tar.gz"),
    "deb.plain": lambda files: deb(tar(files, "w"), "data.tar"),
}


def read(path, wanted=lambda name: True):
    return list(members(path, wanted))


@pytest.fixture(params=MAKERS)
def archive(request, tmp_path):
    path = tmp_path / "archive"  # its name says nothing
    path.write_bytes(MAKERS[request.param](FILES))
    return path


def test_all_files_or_those_that_are_wanted(archive):
    assert read(archive) == list(FILES.items())
    for wanted, names in (
        (["package/*"], ["package/a.svg", "package/deep/b.json", "package/empty"]),
        (["*.svg", "*/empty"], ["package/a.svg", "package/empty", "other/c.svg"]),
        (["PACKAGE/*"], []),
        ([], []),
        (lambda name: name.endswith("json"), ["package/deep/b.json"]),
    ):
        assert [name for name, _ in members(archive, wanted)] == names
    assert next(members(archive, ["*"])) == ("package/a.svg", b"<svg/>")  # reading can end early


def test_leading_dots_of_deb_files_and_zstd_by_dpkg(tmp_path, monkeypatch, capfd):
    path = tmp_path / "a.deb"
    path.write_bytes(deb(tar({"./usr/share/x": b"1"}, "w:xz")))
    assert read(path) == [("usr/share/x", b"1")]
    path.write_bytes(deb(b"\x28\xb5\x2f\xfd....", "data.tar.zst"))
    plain = tmp_path / "plain.tar"
    plain.write_bytes(tar(FILES, "w") + bytes(2**17))  # dpkg-deb must be able to end
    dpkg = tmp_path / "bin" / "dpkg-deb"
    dpkg.parent.mkdir()
    dpkg.write_text(f'#!/bin/sh\n[ "$1 $2" = "--fsys-tarfile {path}" ] && exec /bin/cat "{plain}"\n')
    dpkg.chmod(0o755)
    monkeypatch.setenv("PATH", str(dpkg.parent))
    assert read(path) == list(FILES.items())
    dpkg.write_text(f'#!/bin/sh\n/bin/cat "{plain}"\necho wrong >&2\nexit 2\n')
    assert next(members(path, ["*"])) == next(iter(FILES.items()))  # what follows is nobody's concern
    refusal(lambda: read(path), "a.deb", "dpkg-deb")
    assert capfd.readouterr().err == ""
    dpkg.unlink()
    refusal(lambda: read(path), "a.deb", "zstd", "dpkg-deb")


@pytest.mark.parametrize("make", [tgz, whl])
def test_names_that_lead_out_are_left_out(tmp_path, make):
    unsafe = ["../up", "/etc/passwd", "a/../../up", "\\\\host\\up", "a\\..\\..\\up", "C:up", ".."]
    path = tmp_path / "archive"
    path.write_bytes(make({**dict.fromkeys(unsafe, b"bad"), "a..b/c": b"good"}))
    assert read(path) == [("a..b/c", b"good")]


def test_links_and_devices_are_left_out(tmp_path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo(f"odd{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            packed.addfile(member)
    (tmp_path / "a.tgz").write_bytes(made.getvalue())
    assert read(tmp_path / "a.tgz") == []
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as packed:
        packed.writestr(link, "/etc/passwd")
        packed.writestr("folder/", "")
    assert read(tmp_path / "a.whl") == []


def test_files_that_are_too_large(archive, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_FILE", 4999)
    assert len(read(archive, ["package/*"])) == 3
    refusal(lambda: read(archive), "archive: 'other/c.svg'")
    monkeypatch.setattr(archives, "_MAX_FILE", 5000)
    monkeypatch.setattr(archives, "_MAX_TOTAL", 5007)
    refusal(lambda: read(archive), "'other/c.svg'")
    monkeypatch.setattr(archives, "_MAX_TOTAL", 5008)
    assert len(read(archive)) == 4


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_cut_short(tmp_path, make):
    whole = make({"a": bytes(range(256)) * 40, "b": b"1" * 9000})
    path = tmp_path / "archive"
    for size in (len(whole) // 2, 70, 9, 0):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"^\S+archive ") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_other_files(tmp_path):
    contents = [b"a web page", b"!<arch>\n" + b"x" * 60, b"!<arch>\n", b"PK\x03\x04", b"\x1f\x8b\x08"]
    for content in contents:
        (tmp_path / "archive").write_bytes(content)
        refusal(lambda: read(tmp_path / "archive"), "archive")
    refusal(lambda: read(tmp_path / "missing"), "missing")
