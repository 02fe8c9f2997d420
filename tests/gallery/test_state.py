"""URLs and what they ask for."""

from urllib.parse import urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.gallery.search import Asked, read_asked

TEXTS = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(
    st.builds(
        Asked,
        item=TEXTS,
        label=st.just("") | TEXTS,
        k=st.integers(1, 200),
        filters=st.lists(TEXTS, max_size=4, unique=True).map(tuple),
        expand=st.sampled_from(["", "on", "off"]),
        sides=st.lists(TEXTS, max_size=2, unique=True).map(tuple),
    )
)
def test_a_url_says_all_that_was_asked(asked):
    assert read_asked(urlsplit(asked.url()).query, 200) == asked


def test_what_is_as_usual_is_left_out():
    assert Asked().url() == "/"
    assert Asked(item="a").url() == "/?item=a"


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("k", "0")], "k must be"),
        ([("k", "-1")], "k must be"),
        ([("k", "201")], "k must be"),
        ([("k", "1e3")], "k must be"),
        ([("k", "٣")], "k must be"),
        ([("k", "9" * 5000)], "k has 5,000 characters"),
        ([("k", "9" * 500)], "k must be"),
        ([("expand", "yes")], "expand must be"),
        ([("item", "a"), ("upload", "b")], "both given"),
        ([("item", "a\0b")], "control characters"),
        ([("filter", "a\x1b[31m")], "control characters"),
        ([("a\nb", "\n")], "a parameter holds"),
        ([("filter", f"a={i}") for i in range(17)], "17 times"),
        ([(f"a{i}", "b") for i in range(65)], "more than 64 parameters"),
    ],
)
def test_what_nobody_could_have_meant(pairs, said):
    with pytest.raises(InputError, match=said) as caught:
        read_asked(urlencode(pairs), 200)
    assert "\n" not in str(caught.value)


def test_unknown_parameters_are_left_alone():
    assert read_asked("utm_source=x&item=a&&=", 200) == Asked(item="a")
