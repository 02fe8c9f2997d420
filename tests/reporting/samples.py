"""Findings and comparisons made up for the tests of the pages, small and with known numbers."""

import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image

from frontrank.comparison.results import ComparisonResults, Entry
from frontrank.data.table import ImageTable
from frontrank.evaluation import Report
from frontrank.evaluation.compare import compare_over_classes
from frontrank.evaluation.statistics import PairedDifference, interval_over_classes
from frontrank.reporting.findings import (
    CategoryResult,
    Curve,
    Findings,
    ModelFindings,
    QueryExample,
    RankedImage,
    RankedList,
)
from frontrank.reporting.run import RunFacts

HOSTILE = [
    "<script>alert(1)</script>",
    "\"onload='x'</title></svg></style>",
    "\u202egnirts\u202c \u05d0\u05d1\u05d2",
    "x" * 3000,
    "\U0001f1e9\U0001f1ea & \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "{{ 7 * 7 }}{% raw %}",
    "-->]]><![CDATA[",
    "\udcff\x00",
]
VOID = {"meta", "input", "br", "img", "link"}


def table_of(labels, categories=None, *, roles=None, splits="test", root="x", paths=None, name="", **extra):
    """A table of images that need not exist."""
    count = len(labels)
    paths = [f"{i}.png" for i in range(count)] if paths is None else paths
    blank = [""] * count
    columns = [list(map(str, labels)), blank if categories is None else list(map(str, categories))]
    splits = [splits] * count if isinstance(splits, str) else splits
    return ImageTable(root, paths, *columns, splits, blank if roles is None else roles, extra, name)


def image_table(folder, classes=4, per_class=3, categories=("warm", "cold"), labels=None):
    """Plain coloured pictures, one colour per class; label i is labels[i]."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(classes):
        colour = rng.integers(0, 255, 3)
        for j in range(per_class):
            path = f"{i}-{j}.png"
            noise = rng.integers(-20, 20, (24, 24, 3))
            Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)).save(folder / path)
            label = labels[i] if labels else f"class {i}"
            rows.append((path, label, categories[i % len(categories)] if categories else "", "test", ""))
    return ImageTable(folder, *(np.array(column) for column in zip(*rows, strict=True)), name="colours")


def report_of(hits):
    """A report of R@1, mAP and a distance; `hits` are 0 or 1 per query."""
    values = np.array(hits, dtype=float)
    return Report.of({"R@1": values, "mAP": values * 0.5 + 0.25}, [2] * len(hits), 11, {"dists@intra": 0.25})


def side_of(name, hits, places, high):
    x = np.linspace(-0.2, 1, 13)
    return ModelFindings(
        name,
        f"the model {name}",
        report_of(hits),
        Curve(np.array([1.0, 10, 100]), np.array([np.mean(hits), 0.8, 1.0])),
        Curve(np.linspace(0, 1, 11), np.linspace(high, 0.1, 11)),
        Curve(x, np.exp(-((x - high) ** 2) / 0.02)),
        Curve(x, np.exp(-((x - 0.2) ** 2) / 0.02)),
        places,
        {name: interval_over_classes(of, np.arange(len(hits)) // 3) for name, of in report_of(hits).per_query.items()},
    )


def query_of(row, rows, precisions):
    """A query of two positives that finds the given rows, the first of them right."""
    first = tuple(RankedImage(r, i + 1, 0.9 - i / 10, i == 0, 0.125 / i if i else 0.0) for i, r in enumerate(rows))
    costly = (*first[1:], RankedImage(rows[0] + 1, 9, 0.1, False, 0.0004))
    return QueryExample(
        row, 2, tuple(RankedList(precision, first, costly, place + 1) for place, precision in enumerate(precisions))
    )


def findings_of(folder, sides=2, **table):
    """Findings over a table of 12 pictures, before 3 and after 9 of 12 queries right."""
    images = image_table(folder, **table)
    count = len(images)
    rng = np.random.default_rng(1)
    hits = [np.arange(count) % 4 == 0, np.arange(count) % 4 != 1]
    every = [
        side_of("before", hits[0], rng.normal(size=(count, 2)), 0.4),
        side_of("after", hits[1], rng.normal(size=(count, 2)), 0.8),
    ]
    shown = tuple(every[-sides:])
    precisions = (0.25, 0.75)[-sides:]
    groups = {"best": 0, "typical": 1, "worst": 2} | ({"most improved": 3} if sides == 2 else {})
    others = [row % count for row in (1, 5, 7)]
    found = [name for name in dict.fromkeys(images.categories.tolist()) if name]
    return Findings(
        images,
        shown,
        compare_over_classes(shown[0].report, shown[1].report, images.labels, ("before", "after"))
        if sides == 2
        else None,
        {name: (query_of(row % count, others, precisions),) for name, row in groups.items()},
        np.arange(count),
        tuple(CategoryResult(name, 2, 6, (0.25, 0.75)[-sides:], (0.3, 0.6)[-sides:]) for name in found),
        ("a note",),
    )


def facts_of(**changed):
    steps = np.arange(1.0, 41)
    curves = {
        "loss": Curve(steps, 1 / steps),
        "validation R@1": Curve(np.array([0.0, 20, 40]), np.array([0.25, 0.5, 0.75])),
        "validation mAP": Curve(np.array([0.0, 20, 40]), np.array([0.2, 0.3, 0.4])),
        "learning rate": Curve(steps, 1e-3 * (1 - steps / 41)),
    }
    return RunFacts(
        **{
            "title": "colours",
            "command": "frontrank train --data colours",
            "settings": "loss: PNP\n",
            "curves": curves,
            "facts": {"images": "12 of 4 unseen classes"},
            "versions": {"frontrank": "0.1.0"},
            "licences": {"CC0-1.0": 12},
            "searched": "4 unseen classes",
            **changed,
        }
    )


def entry_of(name, values, settings=None, against=None, **changed):
    """An entry with R@1 per seed as given, and a distance."""
    steps = np.array([0.0, 10, 20])
    return Entry(
        **{
            "name": name,
            "settings": settings or {},
            "lr": 0.001,
            "searched": {0.0003: 0.4, 0.001: 0.5},
            "seeds": tuple(range(len(values))),
            "values": {"R@1": tuple(values), "dists@intra": tuple(value / 2 for value in values)},
            "seconds": (0.1,) * len(values),
            "megabytes": (512.0,) * len(values),
            "curves": tuple(Curve(steps, np.array([0.3, 0.4, value])) for value in values),
            "against": {"R@1": PairedDifference(*against)} if against else {},
            **changed,
        }
    )


def compared_of(*entries, **changed):
    return ComparisonResults(
        **{
            "title": "losses on colours",
            "axis": "",
            "metric": "R@1",
            "reference": entries[0].name if entries else "",
            "entries": entries,
            "frozen": {"R@1": 0.25},
            "images": "12 of 4 unseen classes",
            "command": "frontrank compare --data colours",
            "settings": "steps: 20\n",
            "versions": {"frontrank": "0.1.0"},
            "licences": {"CC0-1.0": 12},
            "notes": ("a note",),
            **changed,
        }
    )


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children = tag, dict(attributes), parent, []

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def classes(self):
        return (self.attributes.get("class") or "").split()

    def all(self, tag=None, **attributes):
        """Every element below that has this tag and these attributes; `of` is one of its classes."""
        of = attributes.pop("of", None)
        for child in self.children:
            if isinstance(child, str):
                continue
            if (
                tag in (None, child.tag)
                and (of is None or of in child.classes)
                and all(child.attributes.get(name) == value for name, value in attributes.items())
            ):
                yield child
            yield from child.all(tag, **attributes, **({"of": of} if of else {}))

    def one(self, tag=None, **attributes):
        (found,) = self.all(tag, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = self.at = Element("", (), None)

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), f"an attribute of {tag} comes twice"
        element = Element(tag, attributes, self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag, attributes):
        self.at.children.append(Element(tag, attributes, self.at))

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def parsed(page):
    """The elements of a page; fails where one is not closed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.at is reader.root, f"<{reader.at.tag}> is never closed"
    return reader.root


def sections(page):
    return [section.attributes["id"] for section in page.all("section")]


def plain(text):
    return re.sub(r"\s+", " ", text).strip()
