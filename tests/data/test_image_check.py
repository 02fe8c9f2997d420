import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frontrank.data import images as image_check
from frontrank.data.images import check_images
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankWarning, InputError
from tests.data.files import refusal

BROKEN = {
    "cut.png": "cannot be decoded",
    "empty.jpg": "is empty (0 bytes)",
    "gone.jpg": "is not there",
    "text.jpg": "is no image",
}


@pytest.fixture
def table(tmp_path):
    """Five good images and four that are broken, in sorted order."""
    folder = tmp_path / "images"
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    good = [f"good{number}.png" for number in range(5)]
    for name in good:
        picture.save(folder / name)
    (folder / "cut.png").write_bytes((folder / good[0]).read_bytes()[:600])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no picture")
    return of(folder, sorted([*good, *BROKEN]))


def of(folder, paths):
    rows = len(paths)
    return ImageTable(
        folder, np.array(paths), np.full(rows, "a"), np.full(rows, ""), np.full(rows, "train"), np.full(rows, ""),
        extra={"number": np.arange(rows)},
    )  # fmt: skip


def good_rows(table):
    return table.rows(np.char.startswith(table.paths, "good"))


@pytest.fixture
def looked_at(monkeypatch):
    """The names of the files that are looked at."""
    seen, look = [], image_check.image_fault

    def spy(file, decode=True):
        seen.append(os.path.basename(file))
        return look(file, decode)

    monkeypatch.setattr(image_check, "image_fault", spy)
    return seen


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_full_check_that_leaves_out(table, workers):
    checked = check_images(table, broken="skip", workers=workers)
    assert [path for path, _ in checked.broken] == list(BROKEN)
    for (_, reason), expected in zip(checked.broken, BROKEN.values(), strict=True):
        assert expected in reason
    assert checked.table.paths.tolist() == [f"good{number}.png" for number in range(5)]
    assert checked.table.extra["number"].tolist() == [3, 4, 5, 6, 7]
    assert "4 of 9 images cannot be read: cut.png cannot be decoded" in checked.note
    assert checked.note.endswith("left out")


def test_a_full_check_that_fails(table):
    message = refusal(
        lambda: check_images(table),
        "4 of 9 images cannot be read: cut.png cannot",
        "; empty.jpg is empty (0 bytes); gone.jpg is not there; and 1 more; ",
        "(broken: skip)",
    )
    assert "text.jpg" not in message


def test_a_quick_check_does_not_decode(table):
    checked = check_images(table, how="quick", broken="skip")
    assert [path for path, _ in checked.broken] == ["empty.jpg", "gone.jpg", "text.jpg"]
    assert "cut.png" in checked.table.paths


def test_no_check(table, looked_at):
    checked = check_images(table, how="none")
    assert checked.table is table
    assert (checked.broken, looked_at) == ([], [])
    assert checked.note == "9 images, not checked"


def test_good_images(table):
    good = good_rows(table)
    for how in ("full", "quick"):
        checked = check_images(good, how=how)
        assert checked.table is good
        assert checked.broken == []
        assert checked.note == "5 images, all of them good"


def test_none_is_left(table):
    bad = table.rows(~np.char.startswith(table.paths, "good"))
    refusal(lambda: check_images(bad, broken="skip"), "4 of 4", "no image is left", table.root)
    checked = check_images(bad, broken="list")
    assert [path for path, _ in checked.broken] == list(BROKEN)
    assert len(checked.table) == 0
    assert check_images(table, broken="list").table.paths.tolist() == good_rows(table).paths.tolist()


def test_a_file_of_several_rows_is_looked_at_once(table, looked_at):
    twice = of(table.root, ["good0.png", "gone.jpg", "good0.png", "gone.jpg", "./good0.png"])
    checked = check_images(twice, broken="skip")
    assert sorted(looked_at) == ["gone.jpg", "good0.png"]
    assert checked.table.extra["number"].tolist() == [0, 2, 4]
    assert "1 of 2 images" in checked.note


def test_the_report_lists_all(table, tmp_path):
    report = tmp_path / "broken.csv"
    refusal(lambda: check_images(table, report=report), f"all are listed in {report}")
    with report.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "reason"]
    assert [path for path, _ in rows[1:]] == list(BROKEN)
    (table.root / "gone.jpg").write_bytes((table.root / "good0.png").read_bytes())
    check_images(table, broken="skip", report=report)
    assert "gone.jpg" not in report.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.csv", "images"]


def test_a_report_replaces_nothing_else(table, tmp_path, looked_at):
    other = tmp_path / "mine.csv"
    other.write_text("path,label\n")
    refusal(lambda: check_images(table, report=other), other, "exists already")
    refusal(lambda: check_images(table, report=tmp_path), tmp_path, "exists already")
    assert other.read_text() == "path,label\n"
    assert looked_at == []
    refusal(lambda: check_images(table, report=tmp_path / "no" / "r.csv"), "cannot be written")
    refusal(lambda: check_images(table, report=other / "r.csv"), "r.csv cannot be written (Not a directory)")


def test_good_images_are_remembered(table, tmp_path, looked_at):
    memory = tmp_path / "good.json"
    check_images(table, broken="skip", remembered=memory)
    assert len(looked_at) == 9
    looked_at.clear()
    checked = check_images(table, broken="skip", remembered=memory)
    assert looked_at == list(BROKEN)
    assert len(checked.table) == 5
    looked_at.clear()
    assert check_images(good_rows(table), remembered=memory).note == "5 images, all of them good (5 remembered)"
    assert check_images(good_rows(table), how="quick", remembered=memory).note.endswith("(5 remembered)")
    assert looked_at == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.json", "images"]


def test_a_file_that_has_changed_is_looked_at_again(table, tmp_path, looked_at):
    memory, good = tmp_path / "good.json", good_rows(table)
    check_images(good, remembered=memory)
    looked_at.clear()
    (table.root / "good1.png").write_bytes(b"not any more")
    os.utime(table.root / "good2.png", ns=(1, 1))
    (table.root / "good3.png").unlink()
    found = check_images(good, broken="skip", remembered=memory).broken
    assert [path for path, _ in found] == ["good1.png", "good3.png"]
    assert looked_at == ["good1.png", "good2.png", "good3.png"]


def test_a_change_of_the_same_size_or_the_same_time(table, tmp_path, looked_at):
    memory, good, file = tmp_path / "good.json", good_rows(table), table.root / "good1.png"
    check_images(good, remembered=memory)
    looked_at.clear()
    before = file.stat()
    file.write_bytes(b"x" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert len(check_images(good, broken="skip", remembered=memory).broken) == 1
    file.write_bytes(b"x" * (before.st_size - 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(check_images(good, broken="skip", remembered=memory).broken) == 1
    assert looked_at == ["good1.png"] * 2


def test_the_memory_does_not_depend_on_the_working_folder(table, tmp_path, monkeypatch, looked_at):
    memory = tmp_path / "good.json"
    monkeypatch.chdir(tmp_path)
    check_images(of(Path("images"), ["good0.png"]), remembered=memory)
    monkeypatch.chdir(tmp_path / "images")
    check_images(of(Path("."), ["good0.png"]), remembered=memory)
    assert looked_at == ["good0.png"]


def test_memories_of_several_tables_are_joined(table, tmp_path, looked_at):
    memory = tmp_path / "good.json"
    for name in ("good0.png", "good1.png"):
        check_images(of(table.root, [name]), remembered=memory)
    looked_at.clear()
    check_images(of(table.root, ["good0.png", "good1.png"]), remembered=memory)
    assert looked_at == []


def test_a_quick_check_is_not_remembered(table, tmp_path):
    check_images(good_rows(table), how="quick", remembered=tmp_path / "good.json")
    assert not (tmp_path / "good.json").exists()


def test_a_check_that_fails_or_is_broken_off_is_remembered(table, tmp_path, monkeypatch, looked_at):
    memory = tmp_path / "good.json"
    with pytest.raises(InputError):
        check_images(table, remembered=memory)
    assert len(json.loads(memory.read_text())["good"]) == 5
    memory.unlink()

    def interrupted(function, files, *others):
        yield function(files[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(image_check, "map_images", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_images(good_rows(table), remembered=memory)
    assert len(json.loads(memory.read_text())["good"]) == 1


HEAD = b'{"format": "frontrank.good-images.1", "good": '
DAMAGED = [b"", b"{", b"[]", b"7", b"null", b'{"good": {}}', b'{"format": "other", "good": {}}', b"\xff\xfe"]
DAMAGED += [HEAD + b'{"a": 1}}', HEAD + b"[]}", HEAD + b'{"a": [1, null]}}', b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=map(str, range(len(DAMAGED))))
def test_a_damaged_memory_is_made_anew(table, tmp_path, content):
    memory = tmp_path / "good.json"
    memory.write_bytes(content)
    with pytest.warns(FrontrankWarning, match=r"good\.json cannot be read.*checked again") as caught:
        assert check_images(good_rows(table), remembered=memory).note == "5 images, all of them good"
    assert caught[0].filename == __file__
    assert len(json.loads(memory.read_text())["good"]) == 5


def test_a_memory_that_cannot_be_written(table, tmp_path):
    with pytest.warns(FrontrankWarning, match=r"cannot be written \(No such file or directory\)") as caught:
        assert check_images(good_rows(table), remembered=tmp_path / "no" / "good.json").broken == []
    assert caught[0].filename == __file__
    (tmp_path / "file").touch()
    with pytest.warns(FrontrankWarning, match=r"cannot be written \(Not a directory\)"):
        assert check_images(good_rows(table), remembered=tmp_path / "file" / "good.json").broken == []


def test_settings_that_are_unknown(table, monkeypatch):
    refusal(lambda: check_images(table, how="fast"), "how must be 'full' or 'quick' or 'none', got 'fast'")
    refusal(lambda: check_images(table, broken="ignore"), "broken must be 'fail' or 'skip' or 'list', got 'ignore'")
    refusal(lambda: check_images(table, workers=-1), "workers must be at least 0")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refusal(lambda: check_images(table), "Pillow", "pip install 'frontrank[train]'")


def boxed(table, paths, boxes):
    return replace(of(table.root, paths), extra={"box": np.array(boxes)})


@pytest.mark.parametrize("how", ["full", "quick"])
def test_boxes_with_nothing_of_the_picture(table, tmp_path, how):
    paths = ["good0.png", "good0.png", "good1.png", "good2.png", "gone.jpg", "good3.png", "good0.png"]
    boxes = ["0 0 9 9", "20 0 30 9", "", "9 5 3 9", "0 0 5 5", "-5 -5 30 30", "20 0 30 9"]
    report = tmp_path / "report.csv"
    checked = check_images(boxed(table, paths, boxes), how=how, broken="skip", report=report)
    assert checked.broken == [
        ("gone.jpg", "is not there"),
        ("good0.png", "has nothing in the box (20, 0, 30, 9), being 20 x 20"),
        ("good2.png", "has nothing in the box (9, 5, 3, 9), being 20 x 20"),
    ]
    assert checked.table.paths.tolist() == ["good0.png", "good1.png", "good3.png"]
    assert checked.table.extra["box"].tolist() == ["0 0 9 9", "", "-5 -5 30 30"]
    assert "3 of 6 images cannot be read" in checked.note
    assert len(report.read_text().splitlines()) == 4
    refusal(lambda: check_images(boxed(table, paths, boxes), how=how), "3 of 6", "nothing in the box (20, 0, 30, 9)")


def test_boxes_of_images_that_are_remembered(table, tmp_path, looked_at):
    memory = tmp_path / "good.json"
    check_images(good_rows(table), remembered=memory)
    looked_at.clear()
    found = boxed(table, ["good0.png", "good1.png"], ["0 0 5 5", "0 20 5 25"])
    assert [path for path, _ in check_images(found, broken="skip", remembered=memory).broken] == ["good1.png"]
    assert looked_at == []
    checked = check_images(found.rows(np.array([0])), remembered=memory)
    assert checked.note == "1 images, all of them good (1 remembered)"


def test_a_broken_file_is_told_of_before_its_box(table):
    checked = check_images(boxed(table, ["cut.png", "good0.png"], ["30 0 40 9", ""]), broken="skip")
    ((path, reason),) = checked.broken
    assert path == "cut.png"
    assert reason.startswith("cannot be decoded")


def test_all_boxes_are_outside(table):
    found = boxed(table, ["good0.png", "good0.png"], ["20 0 30 9", "0 20 9 30"])
    refusal(lambda: check_images(found, broken="skip"), "2 of 2", "no image is left")
    assert len(check_images(found, broken="list").table) == 0


@pytest.mark.parametrize("how", ["full", "quick", "none"])
def test_what_is_no_box_is_refused_before_any_image_is_looked_at(table, looked_at, how):
    found = boxed(table, ["good0.png", "good1.png"], ["0 0 5 5", "0 20 5"])
    refusal(lambda: check_images(found, how=how, broken="skip"), "good1.png has the box '0 20 5'")
    assert looked_at == []
