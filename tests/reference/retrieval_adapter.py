"""An adapter, row by row, from its equations."""

import math


def adapted(tensors, rows):
    """y = normalise(W x + b + V gelu(U x + c)) with x = row / |row|, as lists."""
    result = []
    for row in rows:
        length = math.sqrt(sum(value * value for value in row))
        x = [value / length for value in row]
        z = [dot(w, x) + b for w, b in zip(tensors["weight"], tensors["bias"], strict=True)]
        if "up" in tensors:
            inner = [dot(u, x) + c for u, c in zip(tensors["up"], tensors["up_bias"], strict=True)]
            units = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in inner]
            z = [value + dot(v, units) for value, v in zip(z, tensors["down"], strict=True)]
        size = math.sqrt(sum(value * value for value in z))
        result.append([value / size for value in z])
    return result


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))
