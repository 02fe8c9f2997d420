import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.data.embedding_files import read_embeddings
from frontrank.errors import InputError, InputTypeError
from frontrank.training import distributed
from frontrank.training.embedding import embed_table, embed_to_folder, merge_embeddings
from tests.training.small_model import SmallModel, noise_table


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return noise_table(tmp_path_factory.mktemp("images"), rows=11)


def embed(table, out, model=None, **changes):
    return embed_to_folder(
        model or SmallModel(), table, out, **{"shard_rows": 4, "batch_size": 3, "workers": 0, **changes}
    )


def shards(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def assert_whole(folder, table):
    merged = read_embeddings(merge_embeddings(folder, table, folder / "all.npy", overwrite=True))
    np.testing.assert_allclose(merged.embeddings, embed_table(SmallModel(), table, workers=0), atol=1e-6)


def refusal(call):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_are_files_of_embeddings(table, tmp_path):
    out = embed(table, tmp_path / "new" / "out")
    assert out == tmp_path / "new" / "out"
    assert shards(out) == [f"shard-0000{number}.safetensors" for number in range(3)]
    found = [np.asarray(read_embeddings(out / name).embeddings) for name in shards(out)]
    assert [len(block) for block in found] == [4, 4, 3]
    np.testing.assert_allclose(np.concatenate(found), embed_table(SmallModel(), table, workers=0), atol=1e-6)


@settings(max_examples=15)
@given(rows=st.integers(1, 11), shard_rows=st.integers(1, 12), batch_size=st.integers(1, 12))
def test_any_sizes(table, tmp_path_factory, rows, shard_rows, batch_size):
    part = table.rows(np.arange(rows))
    out = embed(part, tmp_path_factory.mktemp("any"), shard_rows=shard_rows, batch_size=batch_size)
    assert_whole(out, part)


def test_it_goes_on_where_it_stopped(table, tmp_path):
    model = SmallModel()
    model.fails_at = 8  # in the batch of rows 6 to 8, which would have filled the second shard
    with pytest.raises(KeyboardInterrupt):
        embed(table, tmp_path, model)
    assert shards(tmp_path) == ["shard-00000.safetensors"]
    first = (tmp_path / "shard-00000.safetensors").read_bytes()
    model = SmallModel()
    embed(table, tmp_path, model)
    assert model.seen == 7
    assert (tmp_path / "shard-00000.safetensors").read_bytes() == first
    assert_whole(tmp_path, table)
    embed(table, tmp_path, model)
    assert model.seen == 7  # nothing was left to do


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_and_damaged_shards_are_made_again(table, tmp_path, number):
    embed(table, tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in shards(tmp_path)}
    name = f"shard-0000{number}.safetensors"
    flipped = bytearray(whole[name])
    flipped[-3] ^= 16
    another = whole[f"shard-0000{(number + 1) % 3}.safetensors"]
    for content in (None, b"", whole[name][:-5], bytes(flipped), another):
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert refusal(lambda: merge_embeddings(tmp_path, table, tmp_path / "no.npy")) == (
            f"{tmp_path} lacks 1 of its 3 shards, the first being {name}; embed the rest first"
        )
        model = SmallModel()
        embed(table, tmp_path, model)
        assert model.seen == (3 if number == 2 else 4)
        assert_whole(tmp_path, table)


def test_another_model_table_or_setting_is_refused(table, tmp_path):
    embed(table, tmp_path)
    other = SmallModel()
    other.image_size = 3
    relabelled = replace(table, labels=["x"] * 11)
    boxed = replace(table, extra={"box": ["0 0 3 3"] * 11})
    cases = {
        "model": lambda: embed(table, tmp_path, SmallModel(seed=1)),
        "images": lambda: embed(table, tmp_path, other),
        "precision": lambda: embed(table, tmp_path, precision="bf16"),
        "shard_rows": lambda: embed(table, tmp_path, shard_rows=5),
        "table": lambda: embed(table.rows(np.arange(11)[::-1]), tmp_path),
        "table and rows": lambda: embed(table.rows(np.arange(10)), tmp_path),
    }
    for what, call in cases.items():
        assert refusal(call) == f"{tmp_path} was begun with another {what}; give another folder, or delete this one"
    for changed in (relabelled, boxed):
        assert "another table" in refusal(lambda changed=changed: embed(changed, tmp_path))
        said = refusal(lambda changed=changed: merge_embeddings(tmp_path, changed, tmp_path / "all.npy"))
        assert said == f"{tmp_path} holds the embeddings of another table; give the one that was embedded"


def test_a_folder_of_something_else(table, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for call in (lambda: embed(table, tmp_path), lambda: merge_embeddings(tmp_path, table, tmp_path / "all.npy")):
        said = refusal(call)
        assert said == f"{tmp_path} has no manifest.json; give a folder that embed_to_folder began, or a new one"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert "thesis.txt" in refusal(lambda: embed(table, tmp_path / "thesis.txt"))
    assert "thesis.txt" in refusal(lambda: embed(table, tmp_path / "thesis.txt" / "deeper"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": 3}', '"text"'])
def test_a_damaged_manifest(table, tmp_path, content):
    embed(table, tmp_path)
    (tmp_path / "manifest.json").write_text(content)
    said = refusal(lambda: embed(table, tmp_path))
    assert said == f"{tmp_path / 'manifest.json'} cannot be read; delete the folder, and embed again"


def test_the_manifest_says_what_was_embedded(table, tmp_path):
    said = json.loads((embed(table, tmp_path) / "manifest.json").read_text())
    assert (said["rows"], said["shard_rows"], said["precision"]) == (11, 4, "float32")
    assert len(said["model"]) == len(said["table"]) == 64


def test_an_embedding_that_is_not_finite(table, tmp_path):
    model = SmallModel()
    model.broken_rows = (7,)
    assert str(table.root / table.paths[7]) in refusal(lambda: embed(table, tmp_path, model))
    assert shards(tmp_path) == ["shard-00000.safetensors"]


@pytest.mark.parametrize(("value", "error"), [(0, InputError), (2.0, InputTypeError), (True, InputTypeError)])
def test_shard_rows_that_cannot_be(table, tmp_path, value, error):
    with pytest.raises(error, match="shard_rows must be"):
        embed(table, tmp_path / "out", shard_rows=value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("world_size", "shares"), [(2, [8, 3]), (3, [4, 4, 3]), (4, [4, 4, 3, 0])])
def test_each_process_writes_its_shards(table, tmp_path, monkeypatch, world_size, shares):
    """The processes one after the other; each begins with what was there before the first."""
    monkeypatch.setattr(distributed, "world_size", lambda: world_size)
    monkeypatch.setattr(distributed, "any_rank", bool)
    seen, files = [], {}
    for rank in range(world_size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        model = SmallModel()
        embed(table, tmp_path, model)
        seen.append(model.seen)
        for path in tmp_path.glob("*.safetensors"):
            files[path.name] = path.read_bytes()
            path.unlink()
    assert seen == shares
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.undo()
    assert_whole(tmp_path, table)
