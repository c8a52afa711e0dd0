"""The figures of benchmarks/structure.py hold, and it sees what it should."""

import ast
import json

from benchmarks import structure


def test_the_figures_of_this_tree_are_within_the_stored_ones():
    assert not structure.failures(structure.figures(), json.loads(structure.STORED.read_text(encoding="utf-8")))


def test_a_walk_counts_the_package_alone():
    found = structure.walk(lambda: structure.bratu(structure.np.zeros(3)))
    assert found.figures() == {"files": 0, "functions": 0, "calls": 0}
    found = structure.walk(structure.solve_plain)
    assert next(iter(found.functions)) == ("compat/_newton_krylov.py", "newton_krylov")
    assert found.figures()["calls"] >= found.figures()["functions"] >= found.figures()["files"]


def test_numbers_at_the_top_of_a_module_are_constants():
    source = "A = 1\nB, C = 2.0, -3\nD = 1e-4 / 3\nE = True\nF = 'x'\nG: int = 4\nH = (1, 2)\nI = f(1)\ndef f(): x = 1"
    assert list(structure.constants(ast.parse(source))) == ["A", "B", "C", "D", "G", "H"]


SOURCE = """
class A:
    def f(self, x):
        \'\'\'Two
        lines.\'\'\'
        def inner(y):
            return y if y and x or not y else 0
        return [inner(y) for y in x]
"""


def test_functions_are_measured_without_their_docstrings():
    found = dict(structure.functions(ast.parse(SOURCE)))
    assert {name: structure.length(node) for name, node in found.items()} == {"A.f": 4, "A.f.inner": 2}
    assert {name: structure.complexity(node) for name, node in found.items()} == {"A.f": 5, "A.f.inner": 4}


def test_a_figure_above_its_limit_may_not_grow():
    assert structure.most(120, 100) == 120
    assert structure.most(80, 100) == 100
    assert structure.most(80, None) == 82
    assert structure.failures({"lines": 121}, {"lines": {"stored": 120, "limit": 100}}) == ["lines: 121, at most 120"]
