from pathlib import Path

import numpy as np
import pytest

from frontrank.data import check_ids, read_embeddings, read_labels
from tests.data.files import ALL, IDS, LABELS, ROWS, SPLIT, X, refusal, written


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, embeddings=X, label=LABELS, path=IDS, split=SPLIT, score=X[:, 0], boxes=X, short=SPLIT[:2])
    return read_embeddings(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [("label", LABELS), ("labels", LABELS), ("path", IDS), ("ids", IDS), ("split", SPLIT), (Path("split"), SPLIT)],
)
def test_labels_by_the_name_of_an_array(file, source, expected):
    assert read_labels(source, file, ROWS).tolist() == expected.tolist()


def test_a_column_goes_before_the_other_name_of_the_labels(tmp_path):
    np.savez(tmp_path / "test.npz", embeddings=X, labels=SPLIT, label=LABELS)
    file = read_embeddings(tmp_path / "test.npz")
    assert read_labels("labels", file, ROWS).tolist() == SPLIT.tolist()
    assert read_labels("label", file, ROWS).tolist() == LABELS.tolist()


def test_an_array_goes_before_a_file_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("test.npz", embeddings=X, **{"cats.txt": SPLIT})
    Path("cats.txt").write_text("1\n2\n3\n4\n5\n")
    assert read_labels("cats.txt", read_embeddings("test.npz"), ROWS).tolist() == SPLIT.tolist()
    assert read_labels("cats.txt", None, ROWS).tolist() == [1, 2, 3, 4, 5]


TEXT = {
    "integers": ("l.txt", "3\n-1\n+2\n", [3, -1, 2]),
    "words": ("l.txt", "cat\ndog\n3\n", ["cat", "dog", "3"]),
    "spaces": ("l.txt", " cat \r\n\tbig dog\r\ncat", ["cat", "big dog", "cat"]),
    "blank lines at the end": ("l.txt", "1\n2\n2\n\n \n", [1, 2, 2]),
    "a mark at the start": ("l.txt", "\ufeff1\n2\n2\n", [1, 2, 2]),
    "other line ends are text": ("l.txt", "a\u2028b\nc\x0bd\ne\n", ["a\u2028b", "c\x0bd", "e"]),
    "leading zeros": ("l.txt", "001\n002\n001\n", [1, 2, 1]),
    "two spellings": ("l.txt", "01\n1\n2\n", ["01", "1", "2"]),
    "64 bits": ("l.txt", "9223372036854775807\n1\n1\n", [2**63 - 1, 1, 1]),
    "too long for 64 bits": ("l.txt", "9223372036854775808\n1\n1\n", ["9223372036854775808", "1", "1"]),
    "other digits": ("l.txt", "1_0\n²\n٣\n", ["1_0", "²", "٣"]),
    "digits of another script": ("l.txt", "٣\n1\n2\n", ["٣", "1", "2"]),
    "fractions": ("l.txt", "1.0\n2\n3\n", ["1.0", "2", "3"]),
    "capitals": ("L.TXT", "3\n1\n2\n", [3, 1, 2]),
    "json integers": ("l.json", "[1, 2, 2]", [1, 2, 2]),
    "json text": ("l.json", '["1", "ä", " b"]', ["1", "ä", " b"]),
    "csv": ("l.csv", "id,label\na,1\nb,2\nc,2\n", [1, 2, 2]),
    "csv: labels": ("l.csv", "labels\nx\ny\ny\n", ["x", "y", "y"]),
    "csv: label first": ("l.csv", "labels,label\n1,4\n2,5\n3,6\n", [4, 5, 6]),
    "csv: quotes": ("l.csv", '\ufefflabel,n\r\n"a, b", 1\r\n"c\r\nd",2\r\n a ,3', ["a, b", "c\r\nd", "a"]),
    "csv: blank lines at the end": ("l.csv", "label\n1\n2\n2\n\n\n", [1, 2, 2]),
    "csv: a column": ("l.csv:super class", "label, super class\n1,a\n2,b\n3,c\n", ["a", "b", "c"]),
    "csv: a column like a file": ("l.csv:a.csv:b", "label,a.csv:b\n1,a\n2,b\n3,c\n", ["a", "b", "c"]),
    "csv: a column with a colon": ("l.csv:a:b", "label,a:b\n1,a\n2,b\n3,c\n", ["a", "b", "c"]),
}


@pytest.mark.parametrize("case", TEXT)
def test_labels_of_text(tmp_path, file, case):
    name, content, expected = TEXT[case]
    (tmp_path / name.partition(":")[0]).write_bytes(content.encode())
    for beside in (file, None):
        labels = read_labels(f"{tmp_path}/{name}", beside, 3)
        assert labels.tolist() == expected
        assert labels.dtype == np.int64 or labels.dtype.kind == "U"


@pytest.mark.parametrize("ending", ALL)
def test_labels_of_arrays(tmp_path, file, ending):
    path = written(tmp_path / f"labels{ending}", labels=LABELS)
    assert read_labels(path, file, ROWS).tolist() == LABELS.tolist()
    if ending != ".npy":
        path = written(tmp_path / f"labels{ending}", label=LABELS, other=SPLIT, ids=LABELS + 5, split=LABELS + 6)
        assert read_labels(path, file, ROWS, "gallery labels").tolist() == LABELS.tolist()
        assert read_labels(f"{path}:other", file, ROWS).tolist() == SPLIT.tolist()
        assert read_labels(path, file, ROWS, "ids").tolist() == (LABELS + 5).tolist()
        assert read_labels(path, file, ROWS, "split").tolist() == (LABELS + 6).tolist()
    if ending != ".safetensors":
        path = written(tmp_path / f"words{ending}", labels=IDS)
        assert read_labels(path, None, ROWS).tolist() == IDS.tolist()


def test_a_file_with_a_colon_in_its_name(tmp_path):
    (tmp_path / "a.csv:b.txt").write_text("1\n2\n")
    assert read_labels(tmp_path / "a.csv:b.txt", None, 2).tolist() == [1, 2]


WRONG_LABELS = {
    "too few": ("l.txt", "1\n2\n", ["2 entries", "5 rows", "one entry per row"]),
    "too many": ("l.json", "[1, 2, 3, 4, 5, 6]", ["6 entries", "5 rows"]),
    "json: none": ("l.json", "[]", ["0 entries", "5 rows"]),
    "a blank line": ("l.txt", "1\n\n3\n \n5\n", ["blank", "rows 1, 3 (from 0)"]),
    "only blank lines": ("l.txt", "\n\n", ["blank", "row 0 (from 0)"]),
    "many blank lines": ("l.txt", "1\n\n\n\n\n\n\n2", ["rows 1, 2, 3, 4, 5, ... (from 0)"]),
    "not UTF-8": ("l.txt", b"\xff\xfe1\x00", ["utf-8", "write it again"]),
    "json: null": ("l.json", "[1, null, 3, null, 5]", ["null", "rows 1, 3 (from 0)"]),
    "json: blank": ("l.json", '["a", "", "b", "c", "d"]', ["blank", "row 1 (from 0)"]),
    "json: mixed": ("l.json", '[1, "a", 2, 3, 4]', ["int, str", "one way"]),
    "json: fractions": ("l.json", "[1.5, 2.5, 1, 2, 3]", ["float, int", "integers"]),
    "json: truth": ("l.json", "[true, false, true, true, true]", ["got bool"]),
    "json: lists": ("l.json", "[[1], [2], [3], [4], [5]]", ["got list"]),
    "json: an object": ("l.json", '{"labels": [1, 2]}', ["must hold a list", "dict"]),
    "json: too long": ("l.json", f"[{2**70}, 1, 2, 3, 4]", ["integers or text"]),
    "json: broken": ("l.json", "[1, 2", ["write it again"]),
    "json: deep": ("l.json", "[" * 100000, ["write it again"]),
    "csv: no such column": ("l.csv:lable", "id,label\na,1\n", ["no 'lable'", "'id', 'label'", "did you mean 'label'?"]),
    "csv: no label": (
        "l.csv",
        "id,class\na,1\n",
        ["no 'label' or 'labels'", "'id', 'class'", "l.csv:COLUMN", "first line"],
    ),
    "csv: two of a name": ("l.csv", "label,label\n1,2\n", ["2 columns 'label'", "rename"]),
    "csv: a short line": ("l.csv", "label,id\n1,2\n\n3\n", ["1 fields in line 4", "2 in its first"]),
    "csv: a long line": ("l.csv", "label,id\n1,a,b\n", ["3 fields in line 2", "2 in its first", "comma"]),
    "csv: blank": ("l.csv", "label,id\na,1\n,2\nb,3\n\nc,5\n", ["blank", "rows 1, 3 (from 0)"]),
    "csv: blank at the end": ("l.csv", "label,id\na,1\nb,2\nb,3\nb,4\n,5\n\n", ["blank", "row 4 (from 0)"]),
    "csv: too few": ("l.csv", "label\n1\n2\n\n", ["l.csv:label", "2 entries", "5 rows"]),
    "csv: an open quote": ("l.csv", 'label\n"a\nb\n', ["write it again"]),
    "csv: a mark only": ("l.csv", "\ufeff", ["nothing", "first line"]),
    "csv: empty": ("l.csv", "\n", ["nothing", "first line"]),
}


@pytest.mark.parametrize("case", WRONG_LABELS)
def test_wrong_labels(tmp_path, file, case):
    name, content, parts = WRONG_LABELS[case]
    path = tmp_path / name.partition(":")[0]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refusal(lambda: read_labels(f"{tmp_path}/{name}", file, ROWS), path, *parts)


def test_wrong_arrays_of_labels(tmp_path, file):
    np.savez(tmp_path / "l.npz", labls=LABELS, table=X, short=LABELS[:3])
    refusal(lambda: read_labels(tmp_path / "l.npz", file, ROWS), "no 'label' or 'labels'", "did you mean 'labls'?")
    refusal(lambda: read_labels(tmp_path / "l.npz", file, ROWS, "template"), "no 'template'", "pick one as l.npz:NAME")
    refusal(lambda: read_labels(f"{tmp_path}/l.npz:table", file, ROWS), "l.npz:table", "one entry per row", "(5, 3)")
    refusal(lambda: read_labels(f"{tmp_path}/l.npz:short", file, ROWS), "l.npz:short", "3 entries", "5 rows")
    np.save(tmp_path / "l.npy", X)
    refusal(lambda: read_labels(tmp_path / "l.npy", file, ROWS), "l.npy", "one entry per row")
    refusal(lambda: read_labels("score", file, ROWS), f"labels: {file.path}:score", "integers or text", "float32")
    refusal(lambda: read_labels("split", file, 4, "roles"), f"roles: {file.path}:split", "5 entries", "4 rows")


def test_neither_an_array_nor_a_file(tmp_path, file):
    held = "'score', 'labels', 'ids'"
    refusal(lambda: read_labels("splitt", file, ROWS), "'splitt' is no file", file.path, held, "did you mean 'split'?")
    refusal(lambda: read_labels("short", file, ROWS), "one entry per row", held)
    refusal(lambda: read_labels("zzz", file, ROWS, "gallery labels"), "gallery labels: 'zzz'", "give the name")
    refusal(lambda: read_labels("zzz", None, ROWS), "zzz is not there")
    refusal(lambda: read_labels(f"{tmp_path}/tset.npz:split", None, ROWS), "tset.npz is not there", "'test.npz'")
    (tmp_path / "l.tsv").write_text("1")
    refusal(lambda: read_labels(tmp_path / "l.tsv", file, ROWS), "l.tsv ends in '.tsv'", "labels are read from")
    np.save(tmp_path / "test.npy", X)
    refusal(lambda: read_labels("label", read_embeddings(tmp_path / "test.npy"), ROWS), "test.npy, which has none")


def test_ids_that_differ():
    check_ids(IDS)
    check_ids(SPLIT[:0])
    check_ids([3, 1, 2])


def test_ids_that_repeat():
    message = refusal(lambda: check_ids(np.array(["b", "a", "c", "b", "a", "b"]), "gallery ids"))
    assert message == (
        "gallery ids must all differ, but 2 occur more than once: "
        "'b' in rows 0, 3, 5 (from 0), 'a' in rows 1, 4 (from 0); "
        "drop the rows that are there twice, or rename them"
    )
    refusal(lambda: check_ids([4, 7, 7]), "ids must", "1 occurs", "7 in rows 1, 2 (from 0); drop")
    refusal(lambda: check_ids(np.array(["x", "x"], dtype=object)), "'x' in rows 0, 1")
    many = refusal(lambda: check_ids(np.arange(40) % 4))
    assert "4 occur" in many
    assert "0 in rows 0, 4, 8, 12, 16, ... (from 0), 1 in" in many
    assert "3 in rows" not in many
    assert "(from 0), ...; drop" in many
