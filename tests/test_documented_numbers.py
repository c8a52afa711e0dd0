"""The numbers that the documentation names are those of the code."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest

import implicitsolve as ims
from implicitsolve import _assemble, _difference_steps, _differences, adjoint
from implicitsolve.direct import _settings
from implicitsolve.fixed_point import _anderson, _loop
from implicitsolve.newton import _block_loop, _direction, _homotopy, _line_search, _mixed, _solver
from implicitsolve.newton import _loop as newton_loop

PAGES = " ".join(
    " ".join(page.read_text(encoding="utf-8").split())
    for page in sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
)


def text_of(what):
    return " ".join(inspect.getdoc(what).split())


NUMBERS = [
    ("up to 400, after a step", PAGES, _direction.LARGEST_SPACE, 400),
    ("took more than 8 iterations", PAGES, _direction.EASY, 8),
    ("more than 8 iterations", text_of(ims.NewtonKrylov), _direction.EASY, 8),
    ("takes at most 20 evaluations", PAGES, _differences.MAX_CALIBRATIONS, 20),
    ("a growth of √10 at most", PAGES, _solver.CAUTIOUS_GROWTH, 10**0.5),
    ("has not halved ||F||", text_of(ims.NewtonKrylov), _solver.POOR_STEP, 0.5),
    ("t = 1e-4", text_of(ims.Backtracking), _line_search.SUFFICIENT_DECREASE, 1e-4),
    ("below 0.8 of its start", text_of(ims.Backtracking), _line_search.PROMISING, 0.8),
    ("c1 = 1e-4 and c2 = 0.9", text_of(ims.Wolfe), _line_search.CURVATURE, 0.9),
    ("an assembly of J takes at most 64 products", PAGES, _assemble.MOST_PRODUCTS, 64),
    ("k ≤ 64 unknowns, and an assembly", PAGES, _assemble.LARGEST_BLOCK, 64),
    ("1.5 digits are expected", PAGES, _block_loop.DIGITS, 1.5),
    ("with blocks of at least 64 unknowns", PAGES, _mixed.LEAST_BLOCK, 64),
    ("200 at most", PAGES, adjoint.LONGEST, 200),
    ("as many vectors as fit into 1 GiB", PAGES, adjoint.LARGEST, 2**30 // 8),
    ("up to 1e-3", text_of(_difference_steps.DifferenceSteps), _difference_steps.LONGEST, 1e-3),
    ("Default 16.", text_of(ims.CyclicReduction), _settings.GROWTH_LIMIT, 16),
    ("and never less than 100 rounding units", text_of(ims.Anderson), _anderson.ROUNDING, 100),
    ("is 100 steps of a Newton method", text_of(ims.NonlinearStop), newton_loop.NewtonLoop.STEPS, 100),
    ("500 of a fixed-point", text_of(ims.NonlinearStop), _loop.FixedPointLoop.STEPS, 500),
    ("Lengths that are tried. Default 10.", text_of(ims.Wolfe), ims.Wolfe().max_trials, 10),
    ("by more than 37 degrees", text_of(ims.Homotopy), round(math.degrees(math.acos(_homotopy.ALIGNED))), 37),
    ("larger than half the step", text_of(ims.Homotopy), _homotopy.FAR, 0.5),
]


@pytest.mark.parametrize(("words", "text", "actual", "stated"), NUMBERS, ids=[words for words, *_ in NUMBERS])
def test_a_number_in_the_text_is_the_one_in_the_code(words, text, actual, stated):
    assert words in text
    assert actual == stated


def test_vectors_that_a_method_keeps_take_a_gibibyte_of_float64_at_most():
    assert adjoint.LARGEST == _anderson.LARGEST == _direction.BASIS_MEMORY == 2**30 // 8
