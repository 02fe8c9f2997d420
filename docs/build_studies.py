"""Write the pages of studies and the ledger from saved results: python docs/build_studies.py (needs matplotlib).

docs/studies/results/NAME.json    what a study found: results.json of `python -m studies NAME`; read, never written
docs/studies/NAME.md              its page, with NAME-FIGURE.svg and what else it makes beside it
docs/studies/README.md            all studies, and what came out
docs/ledger.md                    the tables of the papers beside ours, from ledger.yaml
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for studies
sys.path.insert(0, str(Path(__file__).parent))  # for ledger_page

from ledger_page import ledger

from studies import all_studies
from studies.study import Study, page_text, read_results
from studies.style import in_this_look, svg_of

DOCS = Path(__file__).parent
RESULTS = DOCS / "studies" / "results"
VERDICT = re.compile(r"\*\*(Agrees in part|Agrees|Does not agree|Not measured)\b[^*]*\*\*")
INDEX = """\
# Studies

Why do losses on ranks work? Each study takes up a figure or a table with which one of the five papers explains its
method, measures it anew with this package, draws it, and says by a criterion that its page states whether it agrees.

```
python -m studies                        # lists them
python -m studies smooth-ap-indicator    # measures, draws, writes a page; --quick for a first look
```

Small ones take seconds to minutes on a CPU; those that train use real emoji, or glyphs where size is the point, and 3
seeds, take up to an hour on 2 cores, and go on where they were stopped. The pages here are generated from the
[saved results](results) by `python docs/build_studies.py`.
What the papers' tables have beside ours: [the ledger](../ledger.md).
"""
PAPERS = {
    "PNP": "PNP",
    "Smooth-AP": "Smooth-AP",
    "AP_Q": "AP_Q",
    "FastAP": "FastAP",
    "RaMBO": "RaMBO",
    "ours": "Beyond the papers",
}


def written(results: Path = RESULTS) -> dict[str, bytes]:
    """Every file that is generated, by its name within docs."""
    files: dict[str, bytes] = {}
    rows: dict[str, list[str]] = {paper: [] for paper in PAPERS}
    for study in all_studies().values():
        path = results / f"{study.name}.json"
        page = None
        if path.exists():
            own = study_files(study, read_results(path, study.name))
            files |= {f"studies/{name}": content for name, content in own.items()}
            page = own[f"{study.name}.md"].decode()
        rows[study.paper].append(_row(study, page))
    files["studies/README.md"] = _index(rows).encode()
    files["ledger.md"] = ledger(DOCS.parent, results).encode()
    return files


def study_files(study: Study, kept: Mapping[str, Any]) -> dict[str, bytes]:
    """The page of a study and its pictures, by the names that they have side by side with those of other studies."""
    before = f"{study.name}-"
    with in_this_look():
        figures = study.figures(kept["found"])
    drawn = {name: svg_of(figure).encode() for name, figure in figures.items()}
    more = study.more(kept["found"])
    text = page_text(study, kept, list(drawn), before)
    for name in more:  # links that the study itself wrote
        text = text.replace(f"]({name})", f"]({before}{name})")
    files = {f"{study.name}.md": text.encode()}
    files |= {f"{before}{name}.svg": content for name, content in drawn.items()}
    return files | {f"{before}{name}": content for name, content in more.items()}


def _row(study: Study, page: str | None) -> str:
    if page is None:
        return f"| {study.title} | {study.shows} | not run yet: `python -m studies {study.name}` |"
    verdict = VERDICT.search(page)
    if verdict is None:
        raise ValueError(f"the page of {study.name} has no verdict")
    return f"| [{study.title}]({study.name}.md) | {study.shows} | {verdict[1].lower()} |"


def _index(rows: Mapping[str, list[str]]) -> str:
    lines = [INDEX]
    for paper, own in rows.items():
        if own:
            lines += [f"## {PAPERS[paper]}", "", "| study | there | |", "|---|---|---|", *own, ""]
    return "\n".join(lines)


def main() -> None:
    files = written()
    kept = {DOCS / name for name in files}
    for path in (DOCS / "studies").glob("*.*"):
        if path.is_file() and path not in kept:  # of a study that is no more
            path.unlink()
    for name, content in files.items():
        (DOCS / name).write_bytes(content)
    print(f"wrote {len(files)} files")


if __name__ == "__main__":
    main()
