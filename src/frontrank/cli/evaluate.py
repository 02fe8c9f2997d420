"""`frontrank evaluate`: its options and examples, and which of them do not go together."""

import argparse
import math
from pathlib import Path

from frontrank.checks import check_number
from frontrank.cli.embed import add_image_arguments
from frontrank.errors import InputError

DESCRIPTION = """\
How well embeddings rank: each metric over the full ranking by cosine similarity,
with its 95 % interval. Without --gallery every row is a query and searches all
the others. Rows with the same label are relevant to each other. A model in place
of the embeddings embeds the images of --data first."""

EPILOG = """\
files:
  embeddings  .npy, .npz, .parquet or .safetensors: a row per image, any float
              type. FILE:NAME picks one of several arrays. .npy and .safetensors
              may be larger than memory.
  labels      the name of an array beside the embeddings, or a file: .txt (one
              per line), .json, .npy, or .csv, .npz, .parquet, .safetensors as
              FILE:COLUMN. Not needed where the embeddings' file has "labels".

examples:
  frontrank evaluate test.npy --labels labels.txt
  frontrank evaluate runs/first/model --data my_photos --split test
  frontrank evaluate test.npz --metrics R@1,R@10,mAP --table markdown
  frontrank evaluate test.npy --labels table.csv:product --json new.json
  frontrank evaluate test.npy --labels labels.txt --compare old.json
  frontrank evaluate test.npz --protocol sop
  frontrank evaluate test.npz --whiten train.npy --dim 16 --rerank
  frontrank evaluate queries.npy --labels queries.txt \\
      --gallery gallery.npy --gallery-labels gallery.txt
  frontrank evaluate queries.parquet --gallery gallery.parquet \\
      --augment --expand 5
  frontrank evaluate faces.npz --protocol ijb-c --templates template
  frontrank evaluate q.npy --gallery g.npy --protocol revisited \\
      --ground-truth gnd_roxford5k.pkl --setup all
"""

PROTOCOLS = "sop, cub, inaturalist, in-shop, vehicleid-small, -medium, -large, vggface2, ijb-c, revisited"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank evaluate EMBEDDINGS|MODEL [--labels LABELS|--data PATH] [options]"
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="file of embeddings: the queries; or a model's folder")
    parser.add_argument("--key", metavar="NAME", help='the array in EMBEDDINGS; "embeddings" by default')
    parser.add_argument("--labels", metavar="LABELS", help="a label per row; see files")

    add_image_arguments(parser.add_argument_group("the images, where a model is given"))

    gallery = parser.add_argument_group("what is searched")
    gallery.add_argument("--gallery", metavar="FILE", help="embeddings to search, instead of the queries themselves")
    gallery.add_argument("--gallery-key", metavar="NAME", help="the array in the gallery's file")
    gallery.add_argument("--gallery-labels", metavar="LABELS", help="a label per row of the gallery")

    measured = parser.add_argument_group("what is measured")
    measured.add_argument("--metrics", metavar="LIST", type=_names, help="such as R@1,R@10,P@5,mAP,mAP@R,NMI")
    measured.add_argument("--protocol", metavar="NAME", help=f"that of a data set: {PROTOCOLS}")
    measured.add_argument("--protocols", action=_ListProtocols, nargs=0, help="explain the protocols and exit")
    measured.add_argument("--templates", metavar="LABELS", help="of vggface2 and ijb-c: a template (video) per row")
    measured.add_argument("--ground-truth", metavar="PKL", help="of revisited: gnd_roxford5k.pkl or gnd_rparis6k.pkl")
    setups = ("easy", "medium", "hard", "all")
    measured.add_argument("--setup", choices=setups, help="of revisited: easy, medium (default), hard or all three")
    measured.add_argument("--distractors", metavar="FILE", help="of revisited: more embeddings to search, such as R1M")

    before = parser.add_argument_group("what is done to the embeddings first, in this order")
    before.add_argument("--whiten", metavar="FILE", help="PCA whitening: training embeddings, or a saved whitening")
    before.add_argument("--power", metavar="P", type=float, help="of the variances; 0.25 by default, 0.5 is full")
    before.add_argument("--dim", metavar="N", type=_count, help="components to keep; all by default")
    often: dict[str, object] = {"metavar": "K", "nargs": "?", "const": 10, "type": _neighbours}
    before.add_argument("--augment", **often, help="move every gallery item to its K nearest (10)")  # type: ignore[arg-type]
    before.add_argument("--expand", **often, help="move every query to its K nearest in the gallery (10)")  # type: ignore[arg-type]
    before.add_argument("--alpha", metavar="A", type=float, help="neighbours count by score^A; 2 by default")
    before.add_argument("--rerank", action="store_true", help="k-reciprocal re-ranking; holds all scores in memory")

    output = parser.add_argument_group("output and running")
    output.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="how tables are written")
    output.add_argument("--json", metavar="OUT", help="save the report, with values per query, as OUT.json")
    output.add_argument("--force", action="store_true", help="let --json replace a file")
    output.add_argument("--compare", metavar="OTHER", help="a saved report (.json), or embeddings of the same rows")
    output.add_argument("--name", metavar="TEXT", help="what to call these embeddings in tables")
    output.add_argument("--device", metavar="NAME", help="where scores are computed, such as cuda or cuda:1")
    output.add_argument("--seed", metavar="N", type=_seed, default=0, help="of the k-means of NMI, and of --compare")
    output.add_argument("--quiet", action="store_true", help="nothing but tables and errors")


def run(options: argparse.Namespace) -> None:
    """Evaluate, print, save, compare."""
    if Path(options.embeddings).is_dir():
        _evaluate_model(options)
        return
    for option in filter(lambda option: _is_given(options, option), _OF_MODELS):
        raise InputError(f"{_flag(option)} goes with a model, and {options.embeddings} is no folder; leave it out")
    _evaluate(options)


def _evaluate_model(options: argparse.Namespace) -> None:
    if options.data is None:
        raise InputError(f"{options.embeddings} is a folder, as of a model, which needs --data; add it, or name a file")
    for option in filter(lambda option: _is_given(options, option), _NOT_OF_MODELS):
        raise InputError(f"{_flag(option)} does not go with --data, which has its own; leave it out")
    from frontrank.cli.embedding import embedded

    with embedded(options) as chosen:
        _evaluate(chosen)


def _evaluate(options: argparse.Namespace) -> None:
    refuse(options)
    from frontrank.cli import evaluation  # torch, from here on

    evaluation.run(options)


def refuse(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, or cannot be."""
    _refuse_lonely(options)
    _refuse_mixed(options)
    for option, most in (("power", 1), ("alpha", math.inf)):
        if getattr(options, option) is not None:
            check_number(_flag(option), getattr(options, option), at_least=0, at_most=most)


class _ListProtocols(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from frontrank.evaluation.protocols import PROTOCOLS

        width = max(map(len, PROTOCOLS))
        for name, protocol in PROTOCOLS.items():
            print(f"{name:{width}}  {protocol.help}")
        parser.exit()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _count(text: str) -> int:
    return _whole(text, "from 1")


def _neighbours(text: str) -> int:
    return _whole(text, "from 1, or nothing", "; put files before it")


def _seed(text: str) -> int:
    return _whole(text, "from 0 to 2147483647", least=0)


def _whole(text: str, said: str, remedy: str = "", least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"needs a whole number {said}, got {text!r}{remedy}")
    return int(text)


_NEEDS = {  # option -> those of which one must be there too
    "gallery_key": ("gallery",),
    "gallery_labels": ("gallery",),
    "power": ("whiten",),
    "dim": ("whiten",),
    "alpha": ("expand", "augment"),
    "force": ("json",),
}
_OF_MODELS = ("data", "layout", "split", "allow_partial", "batch_size", "workers")
_NOT_OF_MODELS = ("key", "labels", "gallery", "gallery_key", "gallery_labels", "distractors")
_OF_REVISITED = ("ground_truth", "setup", "distractors")
_NOT_OF_REVISITED = ("labels", "gallery_labels", "metrics")


def _refuse_lonely(options: argparse.Namespace) -> None:
    """Options that say nothing without another."""
    for option, needed in _NEEDS.items():
        if _is_given(options, option) and not any(_is_given(options, other) for other in needed):
            raise InputError(f"{_flag(option)} needs {' or '.join(map(_flag, needed))}; add it, or leave both out")
    if options.protocol != "revisited":
        for option in filter(lambda option: _is_given(options, option), _OF_REVISITED):
            raise InputError(f"{_flag(option)} is of the protocol revisited; add --protocol revisited")
        return
    for option in filter(lambda option: _is_given(options, option), _NOT_OF_REVISITED):
        raise InputError(f"{_flag(option)} does not go with --protocol revisited, which has its own; leave it out")
    for option in filter(lambda option: not _is_given(options, option), ("gallery", "ground_truth")):
        raise InputError(f"--protocol revisited needs {_flag(option)}; add it")


def _refuse_mixed(options: argparse.Namespace) -> None:
    """Options that contradict each other."""
    if options.rerank:
        if options.protocol:
            raise InputError("--rerank does not go with --protocol; name the metrics by --metrics instead")
        if options.device:
            raise InputError("--rerank does not go with --device; it runs on the CPU")
        if options.expand and not options.gallery:
            raise InputError("--rerank with --expand needs --gallery; leave one of them out")
    if options.compare and options.setup == "all":
        raise InputError("--compare needs one setup; give --setup easy, medium or hard")
    if options.compare and not options.compare.lower().endswith(".json"):
        for option in filter(lambda option: _is_given(options, option), ("gallery", "whiten")):
            raise InputError(
                f"--compare with {_flag(option)} needs a saved report, since {options.compare} has no such file of its "
                "own; evaluate it with --json first, and give that file"
            )


def _is_given(options: argparse.Namespace, option: str) -> bool:
    value = getattr(options, option)
    return value is not None and value is not False  # 0 is given


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
