"""Small files of every kind."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

ROWS, DIM = 5, 3
X = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
LABELS = np.array([0, 0, 1, 1, 2])
IDS = np.array([f"{row}.jpg" for row in range(ROWS)])
SPLIT = np.array([7, 7, 8, 8, 8])
ALL = (".npy", ".npz", ".parquet", ".safetensors")
NAMED = ALL[1:]
TEXTS = (".txt", ".csv", ".json")


def write_arrays(path, /, **arrays):
    """Write a file with these arrays, by its ending; a .npy file has only one."""
    if path.suffix == ".npy":
        (array,) = arrays.values()
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file({name: torch.as_tensor(array).contiguous() for name, array in arrays.items()}, path)
    else:
        pq.write_table(pa.table({name: column(array) for name, array in arrays.items()}), path)
    return path


def column(array):
    return array if isinstance(array, pa.Array | pa.ChunkedArray) else pa.array(list(np.asarray(array)))


def many_scans(count=900, side=2000):
    """The bytes of a progressive JPEG that goes over its pixels again and again."""
    file = io.BytesIO()
    Image.new("L", (side, side), 90).save(file, "jpeg", progressive=True)
    data = file.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]
