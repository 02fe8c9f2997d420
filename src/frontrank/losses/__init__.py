"""The losses of the five papers, one file each, and RankLoss, of which most are presets."""

from frontrank.losses.fastap import FastAP
from frontrank.losses.pnp import PNP
from frontrank.losses.quantized_ap import QuantizedAP
from frontrank.losses.rambo import BlackboxAP, BlackboxRecall, ClassifierAP
from frontrank.losses.rank_loss import RankLoss
from frontrank.losses.smooth_ap import SmoothAP

__all__ = ["PNP", "BlackboxAP", "BlackboxRecall", "ClassifierAP", "FastAP", "QuantizedAP", "RankLoss", "SmoothAP"]
