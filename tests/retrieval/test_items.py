import pickle

import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval import items
from frontrank.retrieval.items import Condition, Item, is_field, matches, number_of, parse_filter, read_filter
from tests.errors import refusal

ITEM = Item(
    "a", "p/1.jpg", "7", None, {"year": 2020, "size": 0.5, "seen": True, "colour": "red", "digits": "12", "zero": 0}
)


def test_fields_and_metadata_by_name():
    names = ("id", "path", "label", "category", "year", "seen", "colour", "size", "other")
    assert [ITEM.value(name) for name in names] == ["a", "p/1.jpg", "7", None, 2020, True, "red", 0.5, None]
    assert Item("1") == Item("1", "", None, None, {}) == Item("1", label="", category="")


def test_items_are_values():
    given = {"a": 1}
    item = Item("1", metadata=given)
    given["a"] = 2
    assert item == Item("1", metadata={"a": 1}) != Item("1", metadata={"a": 2})
    assert hash(item) == hash(Item("1", metadata={"a": 1}))
    for one in (item, Item("2")):
        with pytest.raises(TypeError):
            one.metadata["a"] = 3
    for one in (ITEM, Item("ü")):
        assert pickle.loads(pickle.dumps(one)) == one


def test_ids_and_names_of_fields():
    for name in ("x" * 512, "日本/語.jpg", "a'; drop table", '"', "%_\\"):
        assert Item(name).id == name
    assert items.read_ids(("a", "b")) == ["a", "b"]
    for wrong in ("abc", 3, [1]):
        refusal(lambda wrong=wrong: items.read_ids(wrong), "id", error=InputTypeError)
    assert [name for name in ("a", "_1", "A9_", "", "9", "a-b", "ä", "a\n", 3) if is_field(name)] == ["a", "_1", "A9_"]


WRONG_ITEMS = [
    ("^id ''", {"id": ""}),
    ("^id .*513", {"id": "x" * 513}),
    ("^id .*control", {"id": "a\nb"}),
    ("^id", {"id": "\ud800"}),
    ("^id", {"id": 3}),
    ("^path", {"path": "a\x00"}),
    ("^path", {"path": None}),
    ("^label", {"label": "a\x00"}),
    ("^label", {"label": 7}),
    ("^metadata", {"metadata": [1]}),
    *(("^a of '1'", {"metadata": {"a": value}}) for value in ("\x00", float("nan"), float("inf"), 2**53 + 1, None)),
    *(("^metadata", {"metadata": {name: 1}}) for name in ("a b", "1a", "x" * 65, "label", 3)),
]


@pytest.mark.parametrize(("name", "given"), WRONG_ITEMS)
def test_wrong_items(name, given):
    with pytest.raises((InputError, InputTypeError), match=name) as raised:
        Item(**{"id": "1"} | given)
    assert "\n" not in str(raised.value)


def test_filters_as_text():
    filters = {
        "label=cat": ("label", "=", ("cat",)),
        "label!=cat|dog": ("label", "!=", ("cat", "dog")),
        "year>=2020": ("year", ">=", ("2020",)),
        "year<-1.5e3": ("year", "<", ("-1.5e3",)),
        "year<=1": ("year", "<=", ("1",)),
        " label =  a cat ": ("label", "=", ("a cat",)),
        r"label=a\|b|c": ("label", "=", ("a|b", "c")),
        "label=": ("label", "=", ("",)),
        "label=a=b": ("label", "=", ("a=b",)),
        "label=<日本>'\"%": ("label", "=", ("<日本>'\"%",)),
    }
    assert {text: parse_filter(text) for text in filters} == {text: Condition(*of) for text, of in filters.items()}


def test_filters_that_cannot_be_read():
    texts = ["", "label", "=cat", "la bel=cat", "label==cat", "1a=2", "label~cat", "year>new", "year>=1|2", "n<nan"]
    for text in texts:
        with pytest.raises(InputError, match=r"^filter"):
            parse_filter(text)


@pytest.mark.parametrize("call", [
    lambda: parse_filter(3),
    lambda: Condition("a b", "=", ("x",)),
    lambda: Condition("a", "~", ("x",)),
    lambda: Condition("a", "=", ()),
    lambda: Condition("a", "=", (float("nan"),)),
    lambda: read_filter(3),
    lambda: read_filter([3]),
])  # fmt: skip
def test_wrong_filters(call):
    refusal(call, "filter", error=(InputError, InputTypeError))


def test_one_or_several_filters():
    one = Condition("a", "=", ("1",))
    assert read_filter("a=1") == read_filter(one) == read_filter([one]) == read_filter(("a=1",)) == (one,)
    assert read_filter(["a=1", Condition("b", "=", (True, 2.0))]) == (one, Condition("b", "=", ("true", "2")))
    assert read_filter(()) == ()
    assert Condition("a", "=", ("x", "\x00", "\ud800")).storable_values == ["x"]


def test_what_matches():
    texts = [
        "id=a", "path=p/1.jpg", "label=7", "label!=7.0", "label=6|7", "category!=x", "none!=1",
        "year=2020", "year=2020.0", "year=2.02e3", "year!=x", "year=x|2020", "year<=2020", "year>2019.5",
        "size=.5", "size>0", "zero=-0", "zero>=0", "seen=true", "colour=red", "colour!=blue", "digits=12",
    ]  # fmt: skip
    assert [text for text in texts if not matches([parse_filter(text)], ITEM)] == []
    assert matches([], ITEM)
    assert matches(read_filter(["year=2020", "label=7"]), ITEM)


def test_what_does_not_match():
    texts = [
        "id=b", "label=7.0", "label!=6|7", "label>6", "label<=7", "category=x", "none=1", "none<1",
        "year=x", "year!=x|2020", "year<2020", "year>=2020.5", "zero<0",
        "seen=false", "seen=True", "seen=1", "seen>0", "colour=Red", "digits>3",
    ]  # fmt: skip
    assert [text for text in texts if matches([parse_filter(text)], ITEM)] == []
    assert not matches(read_filter(["year=2020", "label=8"]), ITEM)


def test_numbers_in_text():
    numbers = {"1": 1.0, "-1.5": -1.5, "+.5": 0.5, "5.": 5.0, "1E2": 100.0}
    assert {text: number_of(text) for text in numbers} == numbers
    assert all(number_of(text) is None for text in ("1_0", "0x1", "inf", "nan", "", "1 ", "१", "9" * 400))
