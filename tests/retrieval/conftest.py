import pytest

from tests.retrieval.engines import DURABLE, ENGINES, IndexMaker, Model, halves, some_items


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def make(engine, tmp_path_factory):
    maker = IndexMaker(engine, tmp_path_factory.mktemp("index"))
    yield maker
    maker.close()


@pytest.fixture(scope="module", params=DURABLE)
def durable(request, tmp_path_factory):
    maker = IndexMaker(request.param, tmp_path_factory.mktemp("index"))
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def shared(make):
    return make()


@pytest.fixture
def index(shared):
    """An empty index; each engine has one for all tests of a module."""
    yield shared
    shared.delete([item.id for item in shared.items()])


def fill(index):
    rows, items, model = halves(60), some_items(60), Model()
    index.add(rows, items)
    model.upsert(rows, items)
    return index, model


@pytest.fixture(scope="module")
def filled(make):
    """An index of 60 items whose scores have many ties, and the model of it; only to be read."""
    return fill(make())


@pytest.fixture
def refilled(index):
    """The same, to be changed."""
    return fill(index)
