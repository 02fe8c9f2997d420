"""The client that the documentation shows, against a real server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gallery.live import ranked_by_hand, site_of
from tests.gallery.samples import TOKEN, embed

pytestmark = pytest.mark.processes
CLIENT = Path(__file__).parents[2] / "docs" / "client.py"


def asked(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "FRONTRANK_TOKEN"} | variables
    command = [sys.executable, str(CLIENT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_it_prints_what_is_nearest(pictures, tmp_path):
    folder, items = pictures
    with site_of(folder, items, "colours", token=TOKEN) as site:
        query, server = folder / items[0].path, ("--server", site.url)
        done = asked(query, *server, "-k", 4, "--filter", "label=red|blue", FRONTRANK_TOKEN=TOKEN)
        assert (done.returncode, done.stderr) == (0, "")
        others = ranked_by_hand(site, items[0].id, embed, lambda item: item.label in ("red", "blue"))
        wanted = [items[0].id, *(name for name, _, _ in others[:3])]  # an upload is not known to be in the index
        assert [line.split()[-1] for line in done.stdout.splitlines()] == wanted

        refused = asked(query, *server)
        assert refused.returncode == 1
        assert refused.stderr.startswith("refused (401): ")
        refused = asked(CLIENT, *server, "--token", TOKEN)
        assert refused.returncode == 1
        assert refused.stderr.startswith("refused (422): ")
        large = tmp_path / "large"
        large.write_bytes(bytes(25_000_000))
        refused = asked(large, *server, "--token", TOKEN)
        assert refused.returncode == 1
        assert refused.stderr.startswith("refused (413): ")
    gone = asked(query, *server)
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
