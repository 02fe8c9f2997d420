"""An example of a client of the JSON API; it needs nothing but Python.

python docs/client.py query.jpg
python docs/client.py query.jpg --server http://127.0.0.1:8000 -k 5 --filter label=cat --token ...
"""

import argparse
import json
import os
import secrets
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen


def search(server: str, picture: bytes, *, token: str | None = None, tries: int = 3, **asked: object) -> dict:
    """What the server answers to a picture; `asked` is of k, index, filter (a list), expand and label."""
    mark = secrets.token_hex(16)
    head = f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="query"\r\n\r\n'
    body = head.encode() + picture + f"\r\n--{mark}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = Request(f"{server}/api/v1/search?{urlencode(asked, doseq=True)}", body, headers)
    for left in reversed(range(tries)):
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except HTTPError as refused:
            if refused.code not in (429, 503) or not left:  # a server that is full says when to ask again
                raise SystemExit(f"refused ({refused.code}): {json.load(refused)['detail']}") from None
            time.sleep(float(refused.headers.get("Retry-After", 1)))
        except URLError as error:
            raise SystemExit(f"{server} does not answer ({error.reason}); is frontrank serve running?") from None
    raise AssertionError


def main() -> None:
    """Search with a picture, and print what was found."""
    parser = argparse.ArgumentParser(description="search with a picture")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--token", default=os.environ.get("FRONTRANK_TOKEN"))
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--filter", action="append", default=[])
    given = parser.parse_args()
    picture = given.picture.read_bytes()
    answer = search(given.server.rstrip("/"), picture, token=given.token, k=given.k, filter=given.filter)
    for result in answer["results"]:
        print(f"{result['place']:>3}  {result['score']:.4f}  {result['label'] or '-':<20}  {result['id']}")


if __name__ == "__main__":
    sys.exit(main())
