import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval.items import Condition, Item, matches, number_of, parse_filter, read_filter

ITEM = Item(
    "a", "p/1.jpg", "7", None, {"year": 2020, "size": 0.5, "seen": True, "colour": "red", "digits": "12", "zero": 0}
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label=cat", Condition("label", "=", ("cat",))),
        ("label!=cat|dog", Condition("label", "!=", ("cat", "dog"))),
        ("year>=2020", Condition("year", ">=", ("2020",))),
        ("year<-1.5e3", Condition("year", "<", ("-1.5e3",))),
        ("year<=1", Condition("year", "<=", ("1",))),
        ("year>1", Condition("year", ">", ("1",))),
        (" label =  a cat ", Condition("label", "=", ("a cat",))),
        (r"label=a\|b|c", Condition("label", "=", ("a|b", "c"))),
        ("label=", Condition("label", "=", ("",))),
        ("label=a=b", Condition("label", "=", ("a=b",))),
        ("label=<b>'\"%", Condition("label", "=", ("<b>'\"%",))),
        ("label=日本", Condition("label", "=", ("日本",))),
    ],
)
def test_what_is_written(text, expected):
    assert parse_filter(text) == expected


@pytest.mark.parametrize("text", ["", "label", "=cat", "la bel=cat", "label==cat", "1a=2", "label~cat", "label:cat"])
def test_what_cannot_be_read(text):
    with pytest.raises(InputError, match=r"filter .* cannot be read; write it like label=cat"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_filter("year>new"), "filter year>new must compare with one number"),
        (lambda: parse_filter("year>=1|2"), "filter year>=1|2 must compare with one number"),
        (lambda: parse_filter("year<nan"), "must compare with one number"),
        (lambda: Condition("a b", "=", ("x",)), "filter has the field 'a b'"),
        (lambda: Condition("a", "~", ("x",)), "filter has the operator '~'; use one of = != < <= > >="),
    ],
)
def test_what_cannot_be_meant(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("call", [
    lambda: parse_filter(3),
    lambda: Condition("a", "=", "cat"),
    lambda: Condition("a", "=", ()),
    lambda: Condition("a", "=", (None,)),
    lambda: Condition("a", "=", (float("nan"),)),
    lambda: read_filter(3),
    lambda: read_filter([3]),
])  # fmt: skip
def test_what_is_of_the_wrong_kind(call):
    with pytest.raises(InputTypeError, match="filter"):
        call()


def test_one_or_several():
    one = Condition("a", "=", ("1",))
    assert read_filter("a=1") == read_filter(one) == read_filter([one]) == read_filter(("a=1",)) == (one,)
    assert read_filter(["a=1", Condition("b", "=", (True, 2.0))]) == (one, Condition("b", "=", ("true", "2")))
    assert read_filter(()) == ()


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("id=a", True), ("id=b", False), ("path=p/1.jpg", True),
        ("label=7", True), ("label=7.0", False), ("label!=7.0", True), ("label=6|7", True), ("label!=6|7", False),
        ("label>6", False), ("label<=7", False),
        ("category=x", False), ("category!=x", True), ("none=1", False), ("none!=1", True), ("none<1", False),
        ("year=2020", True), ("year=2020.0", True), ("year=2.02e3", True), ("year=x", False), ("year!=x", True),
        ("year!=x|2020", False), ("year=x|2020", True),
        ("year<2020", False), ("year<=2020", True), ("year>2019.5", True), ("year>=2020.5", False),
        ("size=.5", True), ("size>0", True), ("zero=-0", True), ("zero<0", False), ("zero>=0", True),
        ("seen=true", True), ("seen=false", False), ("seen=True", False), ("seen=1", False), ("seen>0", False),
        ("colour=red", True), ("colour!=blue", True), ("colour=Red", False), ("digits=12", True), ("digits>3", False),
    ],
)  # fmt: skip
def test_what_holds(text, holds):
    assert matches([parse_filter(text)], ITEM) is holds


def test_all_must_hold():
    for texts in itertools.product(["year=2020", "year=1"], ["label=7", "label=8"]):
        assert matches(read_filter(texts), ITEM) is (texts == ("year=2020", "label=7"))
    assert matches([], ITEM)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("-1.5", -1.5), ("+.5", 0.5), ("5.", 5.0), ("1E2", 100.0), ("1_0", None), ("0x1", None), ("inf", None),
     ("nan", None), ("", None), ("1 ", None), ("१", None), ("9" * 400, None)],
)  # fmt: skip
def test_numbers_in_text(text, number):
    assert number_of(text) == number


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, -0.0, 2.0]) | st.sampled_from(["1", "a"])
)


@given(VALUES, st.sampled_from(["1", "0", "2", "0.5", "true"]))
def test_operators_agree_with_each_other(value, written):
    """= and != are opposites; of < = > exactly one holds for a number, none of < > for anything else."""
    item = Item("1", metadata={} if value is None else {"a": value})
    equal, other = (matches([Condition("a", sign, (written,))], item) for sign in ("=", "!="))
    assert equal is not other
    if number_of(written) is not None:
        less, more, at_most, at_least = (
            matches([Condition("a", sign, (written,))], item) for sign in ["<", ">", "<=", ">="]
        )
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert less + equal + more == 1
            assert at_most is (less or equal)
            assert at_least is (more or equal)
        else:
            assert (less, more, at_most, at_least) == (False, False, False, False)
