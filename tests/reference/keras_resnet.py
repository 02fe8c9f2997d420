"""ResNet-50 layer by layer as Keras runs it, from weights by Keras' names."""

import torch
import torch.nn.functional as F

BLUE_GREEN_RED = torch.tensor([103.939, 116.779, 123.68])[:, None, None]
WIDTHS = ((64, 256), (128, 512), (256, 1024), (512, 2048))
DEPTHS = (3, 4, 6, 3)


def shapes():
    """The shape of each weight by Keras' name; kernels are [height, width, in, out]."""
    found = {"fc1000/kernel": (2048, 1000), "fc1000/bias": (1000,)}

    def add(conv, norm, side, before, after):
        found[f"{conv}/kernel"] = (side, side, before, after)
        for name in (f"{conv}/bias", *(f"{norm}/{x}" for x in ("gamma", "beta", "moving_mean", "moving_variance"))):
            found[name] = (after,)

    add("conv1", "bn_conv1", 7, 3, 64)
    before = 64
    for stage, (inner, outer) in enumerate(WIDTHS):
        for block in "abcdef"[: DEPTHS[stage]]:
            name = f"{stage + 2}{block}_branch"
            add(f"res{name}2a", f"bn{name}2a", 1, before, inner)
            add(f"res{name}2b", f"bn{name}2b", 3, inner, inner)
            add(f"res{name}2c", f"bn{name}2c", 1, inner, outer)
            if block == "a":
                add(f"res{name}1", f"bn{name}1", 1, before, outer)
            before = outer
    return found


def logits(weights, pictures):
    """What the classifier gives for pictures [picture, 3, height, width] in red, green, blue, from 0 to 1."""

    def conv_norm(x, conv, norm, stride=1, padding=0):
        kernel = weights[f"{conv}/kernel"].permute(3, 2, 0, 1)
        x = F.conv2d(x, kernel, weights[f"{conv}/bias"], stride, padding)
        mean, variance, gamma, beta = (
            weights[f"{norm}/{name}"][:, None, None] for name in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return (x - mean) / torch.sqrt(variance + 1e-3) * gamma + beta

    x = 255 * pictures[:, [2, 1, 0]] - BLUE_GREEN_RED
    x = conv_norm(x, "conv1", "bn_conv1", stride=2, padding=3).relu()
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, depth in enumerate(DEPTHS):
        for block in "abcdef"[:depth]:
            name = f"{stage + 2}{block}_branch"
            stride = 2 if block == "a" and stage > 0 else 1
            inner = conv_norm(x, f"res{name}2a", f"bn{name}2a", stride).relu()
            inner = conv_norm(inner, f"res{name}2b", f"bn{name}2b", padding=1).relu()
            inner = conv_norm(inner, f"res{name}2c", f"bn{name}2c")
            x = (inner + (conv_norm(x, f"res{name}1", f"bn{name}1", stride) if block == "a" else x)).relu()
    return x.mean((2, 3)) @ weights["fc1000/kernel"] + weights["fc1000/bias"]
