import os
import signal
import sys
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from PIL import Image

from frontrank.data import loading
from frontrank.data.loading import ImageDataset, draw_seed, evaluation_loader, training_loader, worker_errors
from frontrank.data.samplers import BalancedBatches
from frontrank.data.table import ImageTable
from frontrank.data.transforms import training_transform
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.settings import DataConfig
from tests.errors import refusal

ROWS, SIDE = 24, 6
forks = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only, tests rely on it")
TWO = pytest.param(2, marks=[forks, pytest.mark.processes])
WORKERS = [0, TWO]


def plain(image):
    """The pixels as they are."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Pictures of noise, 3 classes of 8; the first pixel says the row."""
    root = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    noise[:, 0, 0] = np.arange(ROWS)[:, None]
    for row, pixels in enumerate(noise):
        Image.fromarray(pixels).save(root / f"{row}.png")
    labels = [f"class {row % 3}" for row in range(ROWS)]
    return ImageTable(
        root, [f"{row}.png" for row in range(ROWS)], labels, *([text] * ROWS for text in ("", "train", ""))
    )


@pytest.fixture
def random_crop():
    return training_transform(DataConfig(resize=SIDE, size=4, augment="crop", flip=True))


def sampler(table, seed=0):
    return BalancedBatches(table.labels, batch_size=6, per_class=2, seed=seed)


def rows_of(images):
    return images[:, 0, 0, 0].int().tolist()


def expected_rows(table, epochs):
    batches = sampler(table)
    found = []
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        found += list(batches.global_batches())
    return found


# The data set


def test_items_by_row_and_by_key(table, random_crop):
    images = ImageDataset(table, plain)
    assert len(images) == ROWS
    picture, label = images[5]
    assert picture[0, 0, 0] == 5
    assert label == 2
    crops = ImageDataset(table, random_crop)
    assert torch.equal(crops[5, 7][0], crops[5, 7][0])
    assert len({crops[5, seed][0].numpy().tobytes() for seed in range(30)}) > 8
    assert crops[5, 7][1] == 2


def test_boxes_crop(table):
    boxes = np.array(["1,2, 4,6", "", "0 0 2 2"])
    images = ImageDataset(ImageTable(table.root, *columns(table, 3), extra={"box": boxes}), plain)
    whole = ImageDataset(table, plain)
    assert torch.equal(images[0][0], whole[0][0][:, 2:6, 1:4])
    assert torch.equal(images[1][0], whole[1][0])
    assert images[2][0].shape == (3, 2, 2)


def columns(table, rows):
    return (getattr(table, name)[:rows] for name in ("paths", "labels", "categories", "splits", "roles"))


# Seeds


def test_seeds_stay_what_they_are():
    assert draw_seed(0, 0, 0, 0) == 4471958607705214174
    assert draw_seed(1, 2, 3, 4) == 18374276246372963665


# Training


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_the_samplers_over_epochs(table, workers):
    batches = sampler(table)
    found = list(training_loader(table, batches, plain, workers=workers, stop=3 * len(batches)))
    assert [rows_of(images) for images, _ in found] == expected_rows(table, 3)
    for images, labels in found:
        assert labels.dtype == torch.int64
        assert labels.tolist() == [row % 3 for row in rows_of(images)]
    assert batches.state_dict() == sampler(table).state_dict()  # it is only looked at


def test_pictures_are_those_of_their_keys(table, random_crop):
    batches = sampler(table)
    images = [images for images, _ in training_loader(table, batches, random_crop, seed=3, workers=0, stop=6)]
    crops = ImageDataset(table, random_crop)
    for number, rows in enumerate(expected_rows(table, 2)[:6]):
        epoch, position = divmod(number, len(batches))
        for place, row in enumerate(rows):
            assert torch.equal(images[number][place], crops[row, draw_seed(3, epoch, position, place)][0])


@forks
@pytest.mark.processes
def test_workers_processes_and_resuming_change_nothing(table, random_crop, monkeypatch):
    def pictures(place=(0, 1), **settings):
        monkeypatch.setattr(loading, "process_group", lambda: place)
        return list(training_loader(table, sampler(table), random_crop, seed=1, stop=7, **settings))

    whole = pictures(workers=0)
    assert len(whole) == 7
    assert_same(pictures(workers=2), whole)
    for start in (0, 3, 4, 6, 7, 9):
        assert_same(pictures(workers=0, start=start), whole[start:])
    assert_same(pictures(workers=2, start=3), whole[3:])
    for world_size in (2, 4):
        shares = [pictures((rank, world_size), workers=0) for rank in range(world_size)]
        joined = [tuple(torch.cat(parts) for parts in zip(*batch, strict=True)) for batch in zip(*shares, strict=True)]
        assert_same(joined, whole)
        assert [len(share[0][0]) for share in shares] == ([3, 3] if world_size == 2 else [2, 2, 1, 1])


def test_it_begins_where_the_sampler_stands(table):
    batches = sampler(table)
    batches.load_state_dict(batches.state_dict(epoch=1, position=2))
    found = [rows_of(images) for images, _ in training_loader(table, batches, plain, workers=0, stop=9)]
    assert found == expected_rows(table, 3)[6:9]
    endless = training_loader(table, batches, plain, workers=0)
    assert [rows_of(next(endless)[0]) for _ in range(6)] == expected_rows(table, 3)[6:12]


@pytest.mark.parametrize("workers", WORKERS)
def test_channels_last_and_random_numbers_that_are_left_alone(table, random_crop, workers):
    before = torch.get_rng_state()
    list(training_loader(table, sampler(table), random_crop, workers=workers, stop=5))
    images, _ = next(training_loader(table, sampler(table), plain, workers=workers, channels_last=True))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert rows_of(images) == expected_rows(table, 1)[0]
    list(evaluation_loader(table, plain, workers=workers))
    assert torch.equal(torch.get_rng_state(), before)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for (images, labels), (expected_images, expected_labels) in zip(found, expected, strict=True):
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)


# Workers


def process(image):
    return torch.tensor([os.getpid()])


@forks
@pytest.mark.processes
def test_workers_stay_over_epochs_and_ctrl_c_and_go_at_the_end(table):
    batches = training_loader(table, sampler(table), process, workers=2)
    workers = {int(number) for _ in range(4) for number in next(batches)[0]}
    assert len(workers) == 2
    assert os.getpid() not in workers
    for worker in workers:
        os.kill(worker, signal.SIGINT)
    assert {int(number) for _ in range(20) for number in next(batches)[0]} == workers
    del batches
    assert not [child for child in active_children() if child.pid in workers]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_broken_image_is_one_line(table, tmp_path, workers):
    (tmp_path / "bad.png").write_bytes((table.root / "0.png").read_bytes()[:60])
    paths = [str(table.root / "1.png"), "bad.png"]
    broken = ImageTable(tmp_path, paths, ["a", "b"], ["", ""], ["test"] * 2, ["", ""])
    with pytest.raises(InputError) as caught:
        list(evaluation_loader(broken, plain, batch_size=1, workers=workers))
    assert str(tmp_path / "bad.png") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "worker" not in str(caught.value)


@forks
@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "killed"), (signal.SIGBUS, "shared memory")], ids=["killed", "bus error"]
)
def test_a_dead_worker_is_one_line(table, number, cause):
    with pytest.raises(FrontrankError, match=f"2 workers .*{cause}") as caught:
        list(evaluation_loader(table, lambda image: os.kill(os.getpid(), number), batch_size=4, workers=2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", WORKERS)
def test_no_shared_memory_is_one_line(table, workers):
    def full(image):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    with pytest.raises(FrontrankError, match="shared memory") as caught:
        next(evaluation_loader(table, full, workers=workers, batch_size=4))
    assert "\n" not in str(caught.value)


def test_worker_errors_around_a_loop():
    with pytest.raises(FrontrankError, match=r"6 workers .* workers to 3"), worker_errors(6):
        raise RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed. ")
    with pytest.raises(RuntimeError, match="CUDA"), worker_errors(6):
        raise RuntimeError("CUDA error")
    with pytest.raises(InputError, match="killed by signal"), worker_errors(6):
        raise InputError("DataLoader worker is killed by signal, says a user")


# Evaluation


@pytest.mark.parametrize("workers", WORKERS)
def test_every_row_once_in_order(table, workers):
    for batch_size, sizes in ((7, [7, 7, 7, 3]), (100, [24])):
        batches = list(evaluation_loader(table, plain, batch_size, workers))
        assert [len(images) for images, _ in batches] == sizes
        assert [row for images, _ in batches for row in rows_of(images)] == list(range(ROWS))
        assert [label for _, labels in batches for label in labels.tolist()] == table.codes().tolist()


@pytest.mark.parametrize(("workers", "chunk"), [(0, 1), pytest.param(2, 3, marks=pytest.mark.processes), (0, 100)])
def test_chunks_are_the_batch_in_pieces(table, workers, chunk):
    whole = list(training_loader(table, sampler(table), plain, workers=0, stop=3))
    pieces = list(training_loader(table, sampler(table), plain, workers=workers, stop=3, chunk=chunk, ahead=1))
    assert len(pieces) == len(whole) == 3
    for (images, labels), (parts, of_parts) in zip(whole, pieces, strict=True):
        assert [len(part) for part in parts[:-1]] == [chunk] * (len(parts) - 1)
        assert 1 <= len(parts[-1]) <= chunk
        assert torch.equal(torch.cat(parts), images)
        assert torch.equal(of_parts, labels)


def test_what_cannot_be_used(table):
    for name, value, error in (
        ("workers", -1, InputError),
        ("workers", True, InputTypeError),
        ("batch_size", 0, InputError),
    ):
        with pytest.raises(error, match=name):
            evaluation_loader(table, plain, **{name: value})  # at once, not at the first batch
    refusal(lambda: training_loader(table, sampler(table), plain, chunk=0), "chunk")
    refusal(lambda: training_loader(table.rows(np.arange(0)), sampler(table), plain), "images")
