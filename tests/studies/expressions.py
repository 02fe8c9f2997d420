"""Derivatives as text, and what is wrong with them: for the reader in Python and for that of the page."""

import math

RIGHT = {  # of R = 0, 1, 3
    "1": (1, 1, 1),
    "R": (0, 1, 3),
    " 1 /\t(1+R) ": (1, 1 / 2, 1 / 4),
    "4/(1+R)^5": (4, 4 / 32, 4 / 1024),
    "1+log(1+R)": (1, 1 + math.log(2), 1 + math.log(4)),
    "R/(1+2*R)": (0, 1 / 3, 3 / 7),
    "exp(-R/2)": (1, math.exp(-0.5), math.exp(-1.5)),
    "2^3^2 - 2^9 + 1": (1, 1, 1),  # powers from the right
    "-2^2+5": (1, 1, 1),  # the sign after the power
    "(-2)^2-3": (1, 1, 1),
    "2^-1": (0.5, 0.5, 0.5),
    "8-2-1": (5, 5, 5),
    "8/2/2": (2, 2, 2),
    "--+-1+2": (1, 1, 1),
    "min(R, 2)+max(1,R)": (1, 2, 5),
    "sqrt(R)*1e1+.5e-1 + 2.": (2.05, 12.05, 10 * math.sqrt(3) + 2.05),
    "max(0,log((1+R)/2))": (0, 0, math.log(2)),
    "0^R": (1, 0, 0),
}
WRONG = {
    "": "position 1: a number, R, a function or ( must come here, but the expression ends",
    "  ": "position 1: a number, R, a function or ( must come here, but the expression ends",
    "1/(1+": "position 6: a number, R, a function or ( must come here, but the expression ends",
    "1/(1+R": "position 3: this ( is never closed",
    "exp(R": "position 4: this ( is never closed",
    "1+*R": 'position 3: a number, R, a function or ( must come here, not "*"',
    "1)": "position 2: this ) closes nothing",
    "2R": 'position 2: an operator must come here, not "R"',
    "(2R)": 'position 3: an operator must come here, not "R"',
    "1 $ 2": 'position 3: an operator must come here, not "$"',
    "x": 'position 1: there is no "x"; there are R, exp, log, sqrt, min, max',
    "1/r": 'position 3: there is no "r"; there are R, exp, log, sqrt, min, max',
    "constructor": 'position 1: there is no "constructor"; there are R, exp, log, sqrt, min, max',
    "1+exp R": "position 7: exp needs ( ) around its argument",
    "log": "position 4: log needs ( ) around its argument",
    "exp(R,1)": "position 1: exp takes 1 argument, not 2",
    "1+max(R)": "position 3: max takes 2 arguments, not 1",
    "max()": 'position 5: a number, R, a function or ( must come here, not ")"',
    "min(1,2": "position 4: this ( is never closed",
    "1,2": 'position 2: an operator must come here, not ","',
    "1e": 'position 2: an operator must come here, not "e"',
    "R**2": 'position 3: a number, R, a function or ( must come here, not "*"',
    "\U0001f600+1": 'position 1: a number, R, a function or ( must come here, not "\U0001f600"',
    "1+\U0001f600\U0001f600": 'position 3: a number, R, a function or ( must come here, not "\U0001f600"',
    "1 \U0001f600 \u00e9": 'position 3: an operator must come here, not "\U0001f600"',
    "\u0661": 'position 1: a number, R, a function or ( must come here, not "\u0661"',  # a digit, but not of ASCII
    "1\u00a0+1": 'position 2: an operator must come here, not "\u00a0"',
    "(" * 60 + "R" + ")" * 60: "position 51: more than 50 things are inside each other here",
    "-" * 5000: "position 2000: it is longer than 2000 characters",
    "-" * 60 + "1": "position 51: more than 50 things are inside each other here",
}
NEGATIVE = ("R-1", "1/R", "log(R)", "1-R/1000", "exp(R)", "sqrt(0-1)")  # can be read, but are not finite and at least 0
