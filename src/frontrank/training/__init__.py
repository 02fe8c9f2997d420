"""The training loop and what it is made of."""

from frontrank.training.distributed import gather, gather_rows
from frontrank.training.embedding import embed_table
from frontrank.training.gradient import Step, multistage_backward, step_gradient
from frontrank.training.memory import EmbeddingMemory
from frontrank.training.peer_losses import PeerLoss, peer_loss

__all__ = [
    "EmbeddingMemory",
    "PeerLoss",
    "Step",
    "embed_table",
    "gather",
    "gather_rows",
    "multistage_backward",
    "peer_loss",
    "step_gradient",
]
