"""What is in files."""

import io
from pathlib import Path

import torch


def files(folder):
    """The bytes of all files below a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def torch_file(value):
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()
