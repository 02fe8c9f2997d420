import pickle

import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval.items import Item, is_field, read_ids, text_of


def test_holds_what_it_was_given():
    item = Item("1", "a.jpg", "cat", "pets", {"year": 2020, "seen": True, "name": "Tom", "size": 0.5})
    assert [item.value(name) for name in ("id", "path", "label", "category", "year", "seen", "name", "size")] == [
        "1", "a.jpg", "cat", "pets", 2020, True, "Tom", 0.5,
    ]  # fmt: skip
    assert item.value("other") is None
    assert Item("1") == Item("1", "", None, None, {})
    assert Item("1", label="", category="") == Item("1")


def test_equal_items_and_their_hash():
    first, second = Item("1", metadata={"a": 1}), Item("1", metadata={"a": 1})
    assert first == second
    assert hash(first) == hash(second)
    assert first != Item("1", metadata={"a": 2})


def test_metadata_is_a_copy_that_cannot_be_changed():
    given = {"a": 1}
    item = Item("1", metadata=given)
    given["a"] = 2
    assert item.metadata["a"] == 1
    with pytest.raises(TypeError):
        item.metadata["a"] = 3
    with pytest.raises(TypeError):
        Item("2").metadata["a"] = 3


def test_goes_to_another_process():
    item = Item("ü", "a.jpg", "cat", None, {"a": 1})
    assert pickle.loads(pickle.dumps(item)) == item
    assert pickle.loads(pickle.dumps(Item("1"))) == Item("1")


@pytest.mark.parametrize("name", ["a", "x" * 512, "ein Ding", "日本/語.jpg", "🐈", "a'; drop table", '"', "%_\\"])
def test_ids(name):
    assert Item(name).id == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": ""}, "id '' has 0 characters; give 1 to 512"),
        ({"id": "x" * 513}, "has 513 characters; give 1 to 512"),
        ({"id": "a\nb"}, r"id 'a\\nb' has a control character"),
        ({"id": "a\x00"}, "has a control character"),
        ({"id": "a\x85"}, "has a control character"),
        ({"id": "\ud800"}, "has a control character, or half of one"),
        ({"id": "1", "path": "a\x00"}, "path of '1' has a zero or half a character"),
        ({"id": "1", "path": "\udcff.jpg"}, "path of '1' has a zero or half a character"),
        ({"id": "1", "label": "a\x00"}, "label of '1' has a zero"),
        ({"id": "1", "category": "\ud800"}, "category of '1' has a zero"),
        ({"id": "1", "metadata": {"a": "\x00"}}, "a of '1' has a zero"),
        ({"id": "1", "metadata": {"a": float("nan")}}, "a of '1' is nan; give finite numbers"),
        ({"id": "1", "metadata": {"a": float("inf")}}, "a of '1' is inf; give finite numbers"),
        ({"id": "1", "metadata": {"a": 2**53 + 1}}, "a of '1' is 9007199254740993; give finite numbers"),
        ({"id": "1", "metadata": {"a b": 1}}, "metadata of '1' has the name 'a b'; use letters"),
        ({"id": "1", "metadata": {"1a": 1}}, "has the name '1a'"),
        ({"id": "1", "metadata": {"": 1}}, "has the name ''"),
        ({"id": "1", "metadata": {"x" * 65: 1}}, "has the name 'xxx"),
        ({"id": "1", "metadata": {"ä": 1}}, "has the name 'ä'"),
        ({"id": "1", "metadata": {"label": "a"}}, "has the name 'label'; .* none of id, path, label, category"),
        ({"id": "1", "metadata": {3: 1}}, "has the name 3"),
    ],
)
def test_what_cannot_be_kept(given, message):
    with pytest.raises(InputError, match=message) as found:
        Item(**given)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": 3}, "id must be text, got 3"),
        ({"id": None}, "id must be text, got None"),
        ({"id": "1", "path": None}, "path of '1' must be text, got None"),
        ({"id": "1", "label": 7}, "label of '1' must be text, got 7"),
        ({"id": "1", "category": b"a"}, "category of '1' must be text"),
        ({"id": "1", "metadata": [1]}, "metadata of '1' must be a mapping"),
        ({"id": "1", "metadata": {"a": None}}, "a of '1' must be text, a number, True or False, got None"),
        ({"id": "1", "metadata": {"a": [1]}}, "a of '1' must be text, a number"),
    ],
)
def test_what_is_of_the_wrong_kind(given, message):
    with pytest.raises(InputTypeError, match=message):
        Item(**given)


def test_lists_of_ids():
    assert read_ids(("a", "b")) == ["a", "b"]
    for wrong in ("abc", 3, None):
        with pytest.raises(InputTypeError, match="ids must be a list of text"):
            read_ids(wrong)
    with pytest.raises(InputTypeError, match="id must be text, got 1"):
        read_ids([1])


def test_names_of_fields():
    assert [name for name in ("a", "_1", "A9_", "", "9", "a-b", "ä", "a\n", 3) if is_field(name)] == ["a", "_1", "A9_"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        ("1.0", "1.0"),
    ],
)
def test_values_as_text(value, text):
    assert text_of(value) == text
