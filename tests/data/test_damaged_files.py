import random
import sys
from pathlib import Path

import numpy as np
import pytest

from frontrank.data import read_embeddings, read_labels
from frontrank.errors import FrontrankError, InputError
from tests.data.files import ALL, LABELS, ROWS, SPLIT, TEXTS, X, refusal, written


def damaged(tmp_path, ending, content):
    path = tmp_path / f"bad{ending}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", [*ALL, *TEXTS])
def test_missing_files_folders_and_empty_files(tmp_path, ending):
    def read(path):
        return lambda: (read_embeddings if ending in ALL else lambda path: read_labels(path, None, ROWS))(path)

    (tmp_path / f"features_test{ending}").write_bytes(b"")
    refusal(read(tmp_path / f"feature_tset{ending}"), "is not there", f"did you mean 'features_test{ending}'?")
    refusal(read(tmp_path / f"zzz{ending}"), "is not there", f"check its name and the folder {tmp_path}")
    refusal(read(tmp_path / "nowhere" / f"zzz{ending}"), "is not there", f"folder {tmp_path / 'nowhere'}", "check")
    refusal(read(tmp_path / f"{'z' * 5000}{ending}"), "is not there")
    refusal(read(tmp_path / f"features_test{ending}"), "is empty", "write it again")
    (tmp_path / f"folder{ending}").mkdir()
    refusal(read(tmp_path / f"folder{ending}"), "is a folder", "give a file")


def test_the_nearest_file_is_one_that_can_be_read(tmp_path):
    for name in ("tests.npz", "test.npz.bak", "test.jpg", "test.parquet", "features.npy"):
        (tmp_path / name).write_bytes(b"x")
    refusal(lambda: read_embeddings(tmp_path / "test.npy"), "did you mean 'test.parquet'?")
    (tmp_path / "photos.jpg").write_bytes(b"x")
    refusal(lambda: read_embeddings(tmp_path / "photo.npy"), "check its name")
    (tmp_path / "test.npz").write_bytes(b"x")
    (tmp_path / "test.safetensors").write_bytes(b"x")
    refusal(lambda: read_embeddings(tmp_path / "tesst.npz"), "did you mean 'test.npz'?")
    refusal(lambda: read_embeddings(tmp_path / "tesst.parquet"), "did you mean 'test.parquet'?")


@pytest.mark.parametrize("name", ["test.pkl", "test.pt", "test"])
def test_unknown_endings(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    ending = repr(Path(name).suffix)
    refusal(lambda: read_embeddings(tmp_path / name), name, f"ends in {ending}", ".npy, .npz, .parquet, .safetensors")
    refusal(lambda: read_labels(tmp_path / name, None, 1), name, f"ends in {ending}", "labels are", ".csv, .json, .txt")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = written(tmp_path / "test.npy", embeddings=X)

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    refusal(lambda: read_embeddings(path), path, "Permission denied", "may read")


def test_what_does_not_fit_into_memory(tmp_path, monkeypatch):
    path = written(tmp_path / "test.npz", embeddings=X)

    def too_much(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array", too_much)
    refusal(lambda: read_embeddings(path), path, "memory", ".npy")


@pytest.mark.parametrize(("ending", "library"), [(".parquet", "pyarrow"), (".safetensors", "safetensors")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, ending, library):
    path = written(tmp_path / f"test{ending}", embeddings=X)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FrontrankError, match=rf"{library}.*pip install 'frontrank\[train\]'") as caught:
        read_embeddings(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ALL)
def test_files_cut_short(tmp_path, ending):
    arrays = {"embeddings": X} if ending == ".npy" else {"embeddings": X, "labels": LABELS, "split": SPLIT}
    whole = written(tmp_path / f"test{ending}", **arrays).read_bytes()
    for length in [*range(0, len(whole), 1 + len(whole) // 90), len(whole) - 1]:
        path = damaged(tmp_path, ending, whole[:length])
        refusal(lambda path=path: read_embeddings(path), path, "write it again")
        refusal(lambda path=path: read_labels(f"{path}:labels" if ending != ".npy" else path, None, ROWS), path)


def scrambled(content, random):
    content = bytearray(content)
    for _ in range(random.randrange(1, 9)):
        start = random.randrange(len(content) + 1)
        content[start : start + random.randrange(9)] = random.randbytes(random.randrange(9))
    return bytes(content)


@pytest.mark.parametrize("ending", ALL)
def test_bytes_at_random(tmp_path, ending):
    chance = random.Random(0)
    arrays = {"embeddings": X} if ending == ".npy" else {"embeddings": X, "labels": LABELS, "split": SPLIT}
    whole = written(tmp_path / f"test{ending}", **arrays).read_bytes()
    for _ in range(40):
        for start in (b"", whole[:4], whole[:12]):
            path = damaged(tmp_path, ending, start + chance.randbytes(chance.randrange(1, 400)))
            refusal(lambda path=path: read_embeddings(path), path)
    refusals = []
    for _ in range(100):
        path = damaged(tmp_path, ending, scrambled(whole, chance))
        try:
            dict(read_embeddings(path).columns)
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) >= 40
    assert all(str(path) in line and "\n" not in line for line in refusals)


@pytest.mark.parametrize("ending", TEXTS)
def test_text_at_random(tmp_path, ending):
    chance = random.Random(0)
    whole = {".txt": b"a\nb\n", ".csv": b'label,id\n"a",1\n"b",2\n', ".json": b'["a", "b"]'}[ending]
    refusals = []
    for _ in range(200):
        content = chance.choice([scrambled(whole, chance), chance.randbytes(chance.randrange(1, 60))])
        path = damaged(tmp_path, ending, content)
        try:
            assert len(read_labels(path, None, 2)) == 2
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) >= 40
    assert all(str(path) in line and "\n" not in line for line in refusals)


def test_one_kind_under_the_ending_of_another(tmp_path):
    for kind in ALL:
        content = written(tmp_path / f"test{kind}", embeddings=X).read_bytes()
        for ending in ALL:
            if ending != kind:
                path = damaged(tmp_path, ending, content)
                refusal(lambda path=path: read_embeddings(path), path, f"no {ending} file")
