"""Poolings of one channel or image as loops over nested lists of numbers."""

import math
from fractions import Fraction


def average(channel):
    values = [x for row in channel for x in row]
    return sum(values) / len(values)


def maximum(channel):
    return max(x for row in channel for x in row)


def gem(channel, power, eps=1e-6):
    """Eq. (3) of Radenović et al."""
    values = [max(x, eps) ** power for row in channel for x in row]
    return (sum(values) / len(values)) ** (1 / power)


def regions(height, width, levels):
    """Sec. 3.2 of Tolias et al.: {(top, left, side): how often}, from the text."""
    short, long = min(height, width), max(height, width)
    extra = 0
    if short < long:
        overlaps = {}
        for count in range(2, 100):  # regions of the first level along the longer side
            step = Fraction(long - short, count - 1)
            overlaps[count] = (short * short - short * step) / (short * short)
        best = min(overlaps, key=lambda count: (abs(overlaps[count] - Fraction(2, 5)), count))
        extra = best - 1
    found = {}
    for level in range(1, levels + 1):
        side = max(1, math.floor(Fraction(2 * short, level + 1)))
        down = level + (extra if height > width else 0)
        across = level + (extra if width > height else 0)
        for i in range(down):
            for j in range(across):
                top = math.floor(Fraction(i * (height - side), down - 1)) if down > 1 else 0
                left = math.floor(Fraction(j * (width - side), across - 1)) if across > 1 else 0
                found[top, left, side] = found.get((top, left, side), 0) + 1
    return found


def rmac(image, levels):
    """One image [channel][row][column]."""
    height, width = len(image[0]), len(image[0][0])
    total = [0.0] * len(image)
    for (top, left, side), times in regions(height, width, levels).items():
        vector = [
            max(channel[y][x] for y in range(top, top + side) for x in range(left, left + side)) for channel in image
        ]
        length = math.sqrt(sum(x * x for x in vector))
        for c, x in enumerate(vector):
            total[c] += times * (x / length if length else 0.0)
    return total
