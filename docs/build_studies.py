"""Write the pages of studies and the ledger from saved results: python docs/build_studies.py (needs matplotlib).

docs/studies/results/NAME.json    what a study found: results.json of `python -m studies NAME`; read, never written
docs/studies/NAME.md              its page, with NAME-FIGURE.svg and what else it makes beside it
docs/studies/README.md            all studies, and what came out
docs/ledger.md                    the tables of the papers beside ours, from ledger.yaml
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for studies
sys.path.insert(0, str(Path(__file__).parent))  # for ledger_page

from ledger_page import ledger

from studies import all_studies
from studies.study import Study, figure_style, read_results, render_page, render_svg

DOCS = Path(__file__).parent
RESULTS = DOCS / "studies" / "results"
INDEX = """\
# Studies

Why do losses on ranks work? Each study takes up a figure or a table with which one of the five papers explains its
method, measures it again with this package, draws it, and says by a criterion that its page states whether it agrees.

```
python -m studies                        # lists them
python -m studies smooth-ap-indicator    # measures, draws, writes a page; --quick for a first look
```

Run them from a checkout. Small ones take seconds to minutes on a CPU. Those that train use real emoji, or glyphs where
size is the point, and 3 seeds; they take up to an hour on 2 cores, and the same command continues one that was stopped.
The pages here are generated from the [saved results](results) by `python docs/build_studies.py`.
The papers' tables beside ours: [the ledger](../ledger.md).
"""
PAPERS = {
    "PNP": "PNP",
    "Smooth-AP": "Smooth-AP",
    "AP_Q": "AP_Q",
    "FastAP": "FastAP",
    "RaMBO": "RaMBO",
    "Recall@k": "Recall@k",
    "HAPPIER": "HAPPIER",
    "ours": "Beyond the papers",
}


def build_all(results: Path = RESULTS) -> dict[str, bytes]:
    """Return every file that is generated, by its name within docs."""
    files: dict[str, bytes] = {}
    rows: dict[str, list[str]] = {paper: [] for paper in PAPERS}
    for study in all_studies().values():
        path = results / f"{study.name}.json"
        saved = read_results(path, study.name) if path.exists() else None
        if saved:
            files |= {f"studies/{name}": content for name, content in build_study(study, saved).items()}
        rows[study.paper].append(_row(study, saved))
    files["studies/README.md"] = _index(rows).encode()
    files["ledger.md"] = ledger(DOCS.parent, results).encode()
    return files


def build_study(study: Study, saved: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the page of a study and its pictures; names begin with that of the study, as all are in one folder."""
    prefix = f"{study.name}-"
    with figure_style():
        figures = study.draw(saved["found"])
    files = {f"{study.name}.md": render_page(study, saved, list(figures), prefix).encode()}
    files |= {f"{prefix}{name}.svg": render_svg(figure).encode() for name, figure in figures.items()}
    return files | {f"{prefix}{name}": content for name, content in study.extra_files(saved["found"]).items()}


def _row(study: Study, saved: Mapping[str, Any] | None) -> str:
    if saved is None:
        return f"| {study.title} | {study.shows} | not run yet: `python -m studies {study.name}` |"
    verdict = study.values(saved["found"])["verdict"].lower()
    return f"| [{study.title}]({study.name}.md) | {study.shows} | {verdict} |"


def _index(rows: Mapping[str, list[str]]) -> str:
    lines = [INDEX]
    for paper, own in rows.items():
        if own:
            lines += [f"## {PAPERS[paper]}", "", "| study | there | |", "|---|---|---|", *own, ""]
    return "\n".join(lines)


def main() -> None:
    files = build_all()
    paths = {DOCS / name for name in files}
    for path in (DOCS / "studies").glob("*.*"):
        if path.is_file() and path not in paths:  # of a study that no longer exists
            path.unlink()
    for name, content in files.items():
        (DOCS / name).write_bytes(content)
    print(f"wrote {len(files)} files")


if __name__ == "__main__":
    main()
