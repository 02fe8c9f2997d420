"""What a user has on disk: images and embeddings, read without ever unpickling anything; and batches of images."""

from frontrank.data.batches import AllClassesBatches, BalancedBatches, CategoryBatches
from frontrank.data.embedding_files import EmbeddingFile, check_ids, read_embeddings, read_labels
from frontrank.data.emoji import build_emoji
from frontrank.data.folders import read_folder, read_table, read_unlabelled
from frontrank.data.glyphs import build_glyphs
from frontrank.data.image_check import check_images
from frontrank.data.image_table import ImageTable
from frontrank.data.images import read_image
from frontrank.data.leakage import near_duplicates
from frontrank.data.published import PUBLISHED, read_published
from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes

__all__ = [
    "PUBLISHED",
    "AllClassesBatches",
    "BalancedBatches",
    "CategoryBatches",
    "EmbeddingFile",
    "ImageTable",
    "build_emoji",
    "build_glyphs",
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
