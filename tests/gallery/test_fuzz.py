"""The JSON API fuzzed from its own description: what it promises holds for all that can be sent, good and bad."""

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from frontrank.gallery import GalleryIndex, create_app
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.samples import BASE, COLOURS, DIM, TOKEN, embed, picture, written

# of ASCII only, as the dictionaries of the fuzzer hold text
PICTURE = written(picture((96, 64, 32), size=(1, 1)), "bmp", dpi=(1, 1)).decode("ascii")
REFUSED = ["400", "404", "405", "410", "414", "415", "422"]
CONFIG = {
    "dictionaries": {
        "ids": {"values": list(COLOURS)},
        "indexes": {"values": ["colours"]},
        "pictures": {"values": [PICTURE]},
    },
    "parameters": {
        "query.id": {"dictionary": "ids", "probability": 0.7},
        "query.item": {"dictionary": "ids", "probability": 0.7},
        "query.index": {"dictionary": "indexes", "probability": 0.5},
        "body.image": {"dictionary": "pictures", "probability": 0.7},
    },
    "generation": {"with-security-parameters": False},
    "checks": {"negative_data_rejection": {"expected-statuses": REFUSED}},
    # that there is one of item and upload, and what is a picture or a filter, cannot be described
    "operations": [{"include-path": "/api/v1/search", "checks": {"positive_data_acceptance": {"enabled": False}}}],
}
SENT = {"body": {"image": PICTURE}, "media_type": "multipart/form-data"}
LONG, NOWHERE, OTHER = {"query": {"label": "a" * 20_000}}, {"query": {"index": "nowhere"}}, {"method": "DELETE"}
ASKED = {  # operation: {status: what is answered by it}
    "GET /api/v1/search": {
        200: {"query": {"item": "red"}},
        404: {"query": {"item": "nothing"}},
        405: OTHER,
        410: {"query": {"upload": "forgotten"}},
        414: LONG,
        422: {},
    },
    "POST /api/v1/search": {
        200: SENT,
        400: SENT | {"headers": {"Content-Type": "multipart/form-data; boundary=another"}},
        404: SENT | NOWHERE,
        414: SENT | LONG,
        422: SENT | {"body": {"image": "no picture"}},
    },
    "GET /api/v1/item": {200: {"query": {"id": "red"}}, 404: {"query": {"id": "nothing"}}, 405: OTHER, 422: {}},
    "GET /api/v1/values": {200: {}, 404: NOWHERE, 405: OTHER, 422: {"query": {"limit": 0}}},
    "GET /api/v1/hardest": {200: {}, 404: NOWHERE, 405: OTHER, 422: {"query": {"limit": 0}}},
    "GET /api/v1/stats": {200: {}, 405: OTHER},
    "GET /api/v1/health": {200: {}, 405: OTHER},
}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
fuzzed = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


def described(token):
    """The description of an application, which is asked what it describes."""
    index = Index(dim=DIM)
    index.add(np.stack([embed(picture(name)) for name in COLOURS]), [Item(name, label=name) for name in COLOURS])
    app = create_app([GalleryIndex("colours", index, embed)], token=token)

    async def endless(scope, receive, send):
        if scope["type"] != "lifespan":  # the fuzzer ends it after every operation
            await app(scope, receive, send)

    found = schemathesis.openapi.from_dict(app.openapi(), config=schemathesis.Config.from_dict(CONFIG))
    found.app = endless
    return found


locked, unlocked = described(TOKEN), described(None)


@pytest.fixture
def seen():
    """The (operation, status) of every answer; fuzzing that does not get through would find nothing."""
    found = set()
    yield found
    (operation,) = {operation for operation, _ in found}
    assert {(operation, 200)} < found  # and some refusal; which ones is left to chance


@locked.parametrize()
@fuzzed
def test_with_the_token_answers_are_as_described(seen, case):
    response = case.call_and_validate(BASE, headers=BEARER)  # and tries what is answered without the token, too
    seen.add((case.operation.label, response.status_code))


@pytest.mark.parametrize(("operation", "status"), [(name, status) for name in ASKED for status in ASKED[name]])
def test_every_status_is_answered_as_described(operation, status):
    method, path = operation.split()
    case = unlocked[path][method].Case(**ASKED[operation][status])
    undescribed = [schemathesis.checks.status_code_conformance] if status == 405 else []  # of no operation
    assert case.call_and_validate(BASE, excluded_checks=undescribed).status_code == status


@pytest.mark.parametrize("description", [locked, unlocked], ids=["locked", "unlocked"])
def test_the_description_is_complete(description):
    operations = {one.ok().label: one.ok().definition.raw for one in description.get_all_operations()}
    assert set(operations) == set(ASKED)
    for name, what in operations.items():
        needs_token = description is locked and name != "GET /api/v1/health"
        assert ("security" in what) == ("401" in what["responses"]) == needs_token
        assert {str(status) for status in {*ASKED[name], 414, 421, 429, 500} - {405}} <= set(what["responses"])
        assert what["summary"]
        busy = what["responses"]["429"]
        assert busy["headers"]["Retry-After"]["required"]
        assert busy["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert {"403", "408", "413", "503"} <= set(operations["POST /api/v1/search"]["responses"])
    assert "HTTPValidationError" not in description.raw_schema["components"]["schemas"]
