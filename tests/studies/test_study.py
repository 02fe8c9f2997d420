"""What all studies do alike: they run into a folder and refuse wrong ones; a whole run is tested with the command."""

import json
import re

import pytest

from frontrank.errors import InputError
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort, read_results, run_study, verdict
from tests.files import files
from tests.studies.samples import STUB


@pytest.mark.parametrize(
    ("folders", "others"), [([], ["mine.txt"]), (["work"], ["README.md"]), ([], ["results.json"])], ids=str
)
def test_files_of_the_user_are_left_alone(tmp_path, folders, others):
    for name in folders:
        (tmp_path / name).mkdir()
    for name in others:
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        run_study(STUB, tmp_path, Effort(tmp_path / "work"), "x")
    assert {path.name for path in tmp_path.iterdir()} == {*folders, *others}
    assert files(tmp_path) == dict.fromkeys(others, b"mine")


@pytest.mark.parametrize(
    "content",
    [None, b"no JSON", b"[]", json.dumps({"study": STUB.name}).encode(), b"\xff\xfe\x00"],
    ids=["nothing", "no JSON", "a list", "half", "bytes"],
)
def test_results_that_cannot_be_read(content, tmp_path):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"results\.json"):
        read_results(path, STUB.name)


def test_a_verdict_on_several_claims():
    words = [verdict(claims) for claims in ([True, True], [False, True], [False, False])]
    assert words == [AGREES, AGREES_IN_PART, DOES_NOT_AGREE]
    with pytest.raises(ValueError, match="no claim"):
        verdict([])
