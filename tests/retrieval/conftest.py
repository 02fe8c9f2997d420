import pytest

from tests.retrieval.index_engines import ENGINES, IndexMaker, Model, halves, some_items


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request):
    return request.param


@pytest.fixture
def make(engine, tmp_path):
    maker = IndexMaker(engine, tmp_path)
    yield maker
    maker.close()


@pytest.fixture(params=[engine for engine in ENGINES if engine.durable], ids=lambda engine: engine.name)
def durable(request, tmp_path):
    maker = IndexMaker(request.param, tmp_path)
    yield maker
    maker.close()


@pytest.fixture
def filled(make):
    """An index of 60 items whose scores have many ties, and the model of it."""
    index, model = make(), Model()
    rows, items = halves(60), some_items(60)
    index.add(rows, items)
    model.upsert(rows, items)
    return index, model
