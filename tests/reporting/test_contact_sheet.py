"""A contact sheet: every picture in its place, with frames and signs that say what is right."""

import numpy as np
from PIL import Image

from frontrank.reporting.contact_sheet import PER_LINE, Cell, contact_sheet

BLUE, GREEN, RED, GREY = (70, 90, 170), (22, 128, 62), (190, 38, 38), (205, 208, 214)
SIDE, FRAME, GAP, TEXT = 128, 4, 14, 32
OUTER, ACROSS = SIDE + 2 * FRAME, SIDE + 2 * FRAME + GAP
DOWN = OUTER + TEXT + GAP


def cell(colour, right=None, size=(60, 60), lines=("1   0.900", "cat")):
    return Cell(Image.new("RGB", size, colour), lines, right)


def corner(column, line=0, rules=0):
    """Where the frame of a cell begins; column 0 is the query."""
    return GAP + column * ACROSS + GAP * (column > 0), GAP + line * DOWN + rules * GAP


def middle(sheet, column, line=0, rules=0):
    left, top = corner(column, line, rules)
    return sheet.getpixel((left + OUTER // 2, top + OUTER // 2))


def frame(sheet, column, line=0, rules=0):
    left, top = corner(column, line, rules)
    return sheet.getpixel((left + 1, top + 1))


def sign(sheet, column):
    """How many pixels of the corner where a sign is are white."""
    left, top = corner(column)
    part = np.asarray(sheet.crop((left + OUTER - 22, top + 2, left + OUTER - 2, top + 22)))
    return int((part.min(-1) > 240).sum())


def test_every_picture_is_in_its_place():
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (9, 9, 9)]
    sheet = contact_sheet([(cell(colours[0]), [cell(colour) for colour in colours[1:]])])
    assert sheet.mode == "RGB"
    assert sheet.size == (2 * GAP + 4 * ACROSS, GAP + DOWN)
    assert [middle(sheet, column) for column in range(4)] == colours


def test_frames_and_signs_say_what_is_right():
    """Not by colour alone: a sign is there too, and a tick is no cross."""
    found = [cell((0, 0, 0), right) for right in (True, False, None)]
    sheet = contact_sheet([(cell((0, 0, 0)), found)])
    assert [frame(sheet, column) for column in range(4)] == [BLUE, GREEN, RED, GREY]
    assert sign(sheet, 3) == 0
    assert 10 < sign(sheet, 1) != sign(sheet, 2) > 10


def test_many_results_go_on_below_and_queries_are_apart():
    many = [cell((i, 0, 0)) for i in range(PER_LINE + 2)]
    sheet = contact_sheet([(cell((0, 99, 0)), many), (cell((0, 0, 99)), many[:1]), (cell((0, 50, 50)), [])])
    assert sheet.size == (2 * GAP + (1 + PER_LINE) * ACROSS, GAP + 4 * DOWN + 2 * GAP)
    assert middle(sheet, PER_LINE) == (PER_LINE - 1, 0, 0)
    assert middle(sheet, 2, line=1) == (PER_LINE + 1, 0, 0)
    assert middle(sheet, 0, line=2, rules=1) == (0, 0, 99)
    assert middle(sheet, 1, line=2, rules=1) == (0, 0, 0)
    assert middle(sheet, 0, line=3, rules=2) == (0, 50, 50)
    assert sheet.getpixel((GAP, GAP + 2 * DOWN)) == GREY  # the rule between the first two
    assert contact_sheet([(cell((0, 99, 0)), many)], per_line=3).width == 2 * GAP + 4 * ACROSS


def test_a_picture_that_cannot_be_read_and_long_or_hostile_text():
    plain = contact_sheet([(cell((0, 0, 0)), [Cell(None, ())])])
    left, top = corner(1)
    inside = np.asarray(plain.crop((left + FRAME, top + FRAME, left + OUTER - FRAME, top + OUTER - FRAME)))
    assert len(np.unique(inside.reshape(-1, 3), axis=0)) > 3  # its place says so in letters
    lines = ("x" * 500, "\x1b[31m two\nlines " + "漢" * 40)
    sheet = contact_sheet([(cell((0, 0, 0)), [cell((0, 0, 0), lines=lines), cell((0, 0, 0), lines=())])])
    between = np.asarray(sheet.crop((left + OUTER + 1, 0, left + ACROSS, sheet.height)))
    assert (between == 255).all()  # a text ends where its picture does
    below = np.asarray(sheet.crop((left, top + OUTER, left + OUTER, top + OUTER + TEXT)))
    assert (below < 150).any()
