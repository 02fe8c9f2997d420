"""What `frontrank evaluate` does: read and check all, move descriptors, evaluate, print, save, compare."""

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frontrank as fr
from frontrank.cli.descriptors import Sides, Steps, moved, read_steps
from frontrank.cli.rows import (
    Rows,
    about,
    described,
    read_rows,
    require_one_dimension,
    require_same_rows,
    say,
    shared_ids,
    with_labels,
)
from frontrank.data import read_labels
from frontrank.data.stored_arrays import did_you_mean
from frontrank.errors import InputError
from frontrank.evaluation import Report, table_of
from frontrank.evaluation.inputs import coded
from frontrank.evaluation.measures import DEFAULT, read_metrics
from frontrank.evaluation.protocols import PROTOCOLS, Protocol
from frontrank.evaluation.revisited import read_ground_truth

_RERANK: dict[str, Any] = {"k1": 20, "k2": 6, "lam": 0.3}
