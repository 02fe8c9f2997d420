"""Real pictures from registry packages: emoji, glyphs and scenes, the data of the demonstration."""

from frontrank.samples.emoji import build_emoji
from frontrank.samples.glyphs import build_glyphs

__all__ = ["build_emoji", "build_glyphs"]
