"""Every study keeps what the command promises: results, figures, a page with a verdict; drawn again, the same."""

import ast
import inspect
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from frontrank.errors import InputError
from studies import study_named
from studies.study import Effort, draw_study, read_results, run_study
from studies.style import FAINT, INK, in_both_lights
from tests.studies.made import MEASURED, STUDIES, command, done, trains

PAPERS = ("PNP", "Smooth-AP", "AP_Q", "FastAP", "RaMBO", "ours")
VERDICT = re.compile(r"\*\*(Agrees in part|Agrees|Does not agree)\b")
PATHS = re.compile(r"/tmp/|/home/|/root/|/Users/|/work/|[A-Z]:\\")  # of the machine that made it
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST = 150_000  # bytes of results

every = pytest.mark.parametrize("name", STUDIES)


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


@every
def test_what_it_is(name):
    study = STUDIES[name]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert study.paper in PAPERS
    assert study.paper == "ours" or re.match(r"(Fig|Table|Sec|Eq|Alg)", study.shows)
    assert study.title[0].isupper()
    assert not study.title.endswith(".")
    assert "\n" not in study.title
    assert len(study.title) < 80
    assert study.claim.endswith(".")
    assert study.minutes > 0
    assert (study.__class__, study) == (type(study_named(name)), study_named(name))


@every
def test_it_takes_the_options_that_it_heeds(name):
    module = sys.modules[STUDIES[name].measure.__module__]
    heeds = {
        "data": hasattr(module, "emoji") or hasattr(module, "glyphs"),
        "seeds": trains(STUDIES[name]) or "effort.seeds" in inspect.getsource(module),
    }
    assert STUDIES[name].takes == tuple(option for option, is_heeded in heeds.items() if is_heeded)


@every
def test_results_are_plain_and_small(name, study_done):
    path = study_done(name) / "results.json"
    kept = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert path.stat().st_size < MOST
    assert (kept["study"], kept["command"], kept["quick"], kept["seed"]) == (name, command(name), True, 0)
    assert kept["found"]
    assert not PATHS.search(path.read_text(encoding="utf-8"))


@every
def test_figures_can_be_read_on_light_and_dark_pages(name, study_done):
    folder = study_done(name)
    drawn = sorted(path.stem for path in folder.glob("*.svg"))
    assert drawn
    for stem in drawn:
        svg = (folder / f"{stem}.svg").read_text(encoding="utf-8")
        ElementTree.fromstring(svg)
        assert svg.count("@media (prefers-color-scheme: dark)") == 1
        assert INK in svg  # text and axes are of the colour that turns light
        assert not re.search(r"stroke: (#000000|black)", svg)
        assert "<dc:date>" not in svg
        assert not PATHS.search(svg)
        assert len(svg) < 1_500_000
        assert (folder / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


@every
def test_the_page_says_all(name, study_done):
    folder, study = study_done(name), STUDIES[name]
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {study.title}\n")
    assert study.claim in page
    assert study.shows in page or study.paper == "ours"
    assert f"\n    {command(name)}\n" in page
    assert VERDICT.search(page)
    links = [link for link in LINK.findall(page) if "://" not in link and not link.startswith("#")]
    assert {f"{path.stem}.svg" for path in folder.glob("*.svg")} <= set(links)
    assert not [link for link in links if not (folder / link).exists()]
    *_, last = page.splitlines()
    assert " A quick, small version of it: sizes, steps and seeds are smaller than the text says." in last
    assert ("The images are those of --data" in last) is ("data" in study.takes)
    assert not PATHS.search(page)
    assert "nan" not in re.findall(r"[a-z]+", page)


@every
def test_drawn_again_it_is_the_same(name, study_done, tmp_path):
    before = study_done(name)
    shutil.copy(before / "results.json", tmp_path)
    draw_study(STUDIES[name], read_results(tmp_path / "results.json", name), tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in before.iterdir()} - {"work"}
    assert [file for file in made if (tmp_path / file).read_bytes() != (before / file).read_bytes()] == []


def test_results_from_before_own_images_were_noted(study_done, tmp_path):
    kept = json.loads((study_done("rambo-bias") / "results.json").read_text())
    assert kept.pop("own_images") is True
    (tmp_path / "results.json").write_text(json.dumps(kept | {"quick": False}))
    page = draw_study(STUDIES["rambo-bias"], read_results(tmp_path / "results.json", "rambo-bias"), tmp_path)
    assert page.read_text(encoding="utf-8").endswith(f"{kept['machine']}.\n")


@pytest.mark.parametrize("name", MEASURED)
def test_measured_again_it_is_the_same(name, images, study_done, tmp_path):
    done(name, tmp_path / "again", images)
    again, before = (json.loads((path / "results.json").read_text()) for path in (tmp_path / "again", study_done(name)))
    assert _without_times(again["found"]) == _without_times(before["found"])


def _without_times(found):
    """Results without what a clock has measured."""
    if isinstance(found, dict):
        return {key: _without_times(value) for key, value in found.items() if not re.search("second|_ms$|time", key)}
    return [_without_times(value) for value in found] if isinstance(found, list) else found


# What is refused


NAME = "smooth-ap-indicator"


def test_there_is_no_such_study():
    with pytest.raises(InputError, match=r"there is no study 'smooth-ap-indicatr'; did you mean smooth-ap-indicator\?"):
        study_named("smooth-ap-indicatr")
    with pytest.raises(InputError, match="there is no study 'xyz'; python -m studies lists them"):
        study_named("xyz")


def test_results_are_not_replaced(study_done, tmp_path):
    shutil.copytree(study_done(NAME), tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    with pytest.raises(InputError, match=r"results\.json is there already; give --redraw to draw it again, or another"):
        done(NAME, tmp_path / "out", seed=1)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()} == before


def test_a_folder_of_mine_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"--out .* is not empty; choose another name"):
        done(NAME, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_is_beside_a_folder_of_work_is_left_alone(tmp_path):
    """A project may have a folder of that name; a study that was stopped leaves nothing else."""
    (tmp_path / "work").mkdir()
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"--out .* is not empty; choose another name"):
        done(NAME, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "work"]


def test_empty_folders_go_again_that_a_study_has_made(tmp_path):
    """Nested ones, too; what has a file in it stays, and so does what was there before."""
    (tmp_path / "out" / "work" / "mine").mkdir(parents=True)

    def refused(effort):
        (effort.work / "epochs" / "deep").mkdir(parents=True)
        (effort.work / "kept" / "empty").mkdir(parents=True)
        (effort.work / "kept" / "run.json").write_text("{}")
        raise InputError("--data is wrong; give another")

    study = replace(STUDIES[NAME], measure=refused)
    for name, there in (("out", {"mine", "kept", "kept/run.json"}), ("new", {"kept", "kept/run.json"})):
        out = tmp_path / name
        with pytest.raises(InputError, match="--data is wrong"):
            run_study(study, out, Effort(out / "work"), "command")
        assert {path.relative_to(out / "work").as_posix() for path in (out / "work").rglob("*")} == there


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "results.json is not there; run the study first, without --redraw"),
        ("no JSON", "results.json does not hold the results of a study; run it again into another --out"),
        ("[]", "does not hold the results of a study"),
        (json.dumps({"study": NAME}), "does not hold the results of a study"),
        (b"\xff\xfe\x00", "does not hold the results of a study"),
    ],
    ids=["nothing", "no JSON", "a list", "half", "bytes"],
)
def test_results_that_cannot_be_drawn(content, said, tmp_path):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=re.escape(said)) as error:
        read_results(path, NAME)
    assert "\n" not in str(error.value)


def test_results_of_another_study(study_done):
    with pytest.raises(InputError, match=f"holds the results of {NAME}, not of other-study; give another --out"):
        read_results(study_done(NAME) / "results.json", "other-study")


def test_the_dark_rule_changes_ink_and_grid_alone():
    svg = in_both_lights(f'<svg><defs></defs><path style="stroke: {INK}"/><path style="fill: {FAINT}"/></svg>')
    style = re.search("<style>(.*)</style>", svg)[1]
    assert style.count("!important") == 4
    assert svg.index("<style>") < svg.index("<defs>")
    assert re.findall(r'"(?:fill|stroke): (#\w+)"', style) == [INK, FAINT] * 2


def test_there_is_a_test_of_every_module():
    """What a study computes is held to values by hand or to a reference, beside these tests of all."""
    tests = [_imported(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("test_*.py")]
    assert {study.measure.__module__ for study in STUDIES.values()} <= set().union(*tests)


def _imported(source):
    """The names of all that a module's source imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_a_name_that_is_not_imported_does_not_count():
    source = "import a.b\nfrom c import d as e\ndef f():\n    from g.h import i\n    return 'grid', grid\n"
    assert _imported(source) == {"a.b", "c", "c.d", "g.h", "g.h.i"}
