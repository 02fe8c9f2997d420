"""Images and embeddings on a user's disk, read without unpickling anything; and batches of images."""

from frontrank.data.embedding_files import EmbeddingFile, check_ids, read_embeddings, read_labels
from frontrank.data.images import check_images
from frontrank.data.leakage import near_duplicates
from frontrank.data.published import PUBLISHED, read_published
from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches
from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes
from frontrank.data.table import ImageTable, read_folder, read_table, read_unlabelled
from frontrank.pictures.decode import read_image

__all__ = [
    "PUBLISHED",
    "AllClassesBatches",
    "BalancedBatches",
    "CategoryBatches",
    "EmbeddingFile",
    "ImageTable",
    "check_ids",
    "check_images",
    "hold_out_classes",
    "merge_classes",
    "near_duplicates",
    "read_embeddings",
    "read_folder",
    "read_image",
    "read_labels",
    "read_published",
    "read_table",
    "read_unlabelled",
    "split_test_classes",
]
