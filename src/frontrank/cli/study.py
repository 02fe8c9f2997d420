"""`frontrank study`: its options and examples."""

import argparse

DESCRIPTION = """\
Why do losses on ranks work? Each study takes up a figure or a table of one of
the papers, measures it anew here, draws it, and says whether it agrees.
Without a name it lists them."""

EPILOG = """\
examples:
  frontrank study
  frontrank study smooth-ap-indicator
  frontrank study pnp-circle --quick --out circle
  frontrank study pnp-circle --redraw --out circle
  frontrank study pnp-designer --derivative "1/(1+R)^2"

Studies that train take minutes to hours; one that was stopped goes on where it
was with the same command.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = (
        "frontrank study [NAME] [--out DIR] [--quick] [--seed N] [--seeds N] [--data PATH] "
        "[--derivative TEXT] [--redraw] [--quiet]"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="which; all are listed without one")
    parser.add_argument("--out", metavar="DIR", help="folder for what it finds; studies/NAME by default")
    parser.add_argument("--quick", action="store_true", help="a small version, for a first look")
    parser.add_argument("--seed", metavar="N", type=int, help="of everything random; 0")
    parser.add_argument("--seeds", metavar="N", type=int, help="runs of each setting, where it trains; 3")
    parser.add_argument(
        "--data", metavar="PATH", default="", help="images, where it takes some; emoji or glyphs are built otherwise"
    )
    parser.add_argument("--derivative", metavar="TEXT", default="", help="of pnp-designer: f'(R), such as '1/(1+R)^2'")
    parser.add_argument("--redraw", action="store_true", help="draw what was found before, measure nothing")
    parser.add_argument("--quiet", action="store_true", help="nothing but the path of the page, and errors")


def run(options: argparse.Namespace) -> None:
    """List the studies, or do one."""
    from frontrank.cli import studying  # torch, from here on

    studying.run(options)
