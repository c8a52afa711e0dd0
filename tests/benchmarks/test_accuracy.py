"""The accuracy page: its systems, what counts as solved, and its table."""

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import RIGHT, Record, main
from benchmarks.accuracy.solvers import solver
from benchmarks.accuracy.systems import KINDS, systems


def test_the_systems_are_of_all_kinds_and_vanish_at_their_roots():
    found = list(systems(2 * len(KINDS), seed=1))
    assert len({system.kind for system in found}) == len(KINDS) == 8
    for system in found:
        if system.root is not None:
            assert system.error(system.root) == 0
            start, end = (np.abs(system.residual(x)).max() for x in (system.x0, system.root))
            assert end <= 1e-12 * start or np.abs(system.x0 - system.root).max() <= 1e-3 * np.abs(system.root).max()


def test_a_success_far_from_the_root_is_false():
    record = Record(errors=[0.0, 0.1 * RIGHT, 10 * RIGHT, np.inf], claims=[True, False, True, True])
    assert (record.solved, record.false) == (1, 2)


def test_the_page_has_a_row_for_each_kind_and_solver(tmp_path):
    page, record = tmp_path / "accuracy.md", str(tmp_path / "accuracy.json")
    main(["--count", "8", "--seed", "1", "--methods", "auto", "--record", record])
    main(["--count", "8", "--seed", "1", "--methods", "hybr", "--record", record])
    main(
        [
            "--count",
            "3",
            "--seed",
            "1",
            "--hard",
            "--warm",
            "--methods",
            "auto",
            "--record",
            record,
            "--write",
            str(page),
        ]
    )
    text = page.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("| solver", "| ---")]
    kinds = [system.kind for system in systems(len(KINDS), seed=1)]
    assert [row[1] for row in rows[:18]] == [*kinds, "all"] * 2
    assert [row[2] for row in rows] == [*["1"] * len(KINDS), "8"] * 2 + ["1", "1", "1", "3"]
    assert all(row[4] == "0" for row in rows if row[0] == "| auto")
    assert "3 systems from their roots" in text
    assert ": 0 failures" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("homotopy", 23),  # its path ended with a residual larger than many before
        ("pseudo-transient", 282),  # F vanishes exactly, at infinity
        ("broyden", 172),  # a model that has not seen the weak direction of a nearly singular J
        ("anderson", 27),
        ("block-newton", 42),  # from near a stationary point to where F vanishes
        ("block-newton", 19),  # unknowns in units that differ by twenty decades
        ("newton_batch", 42),
        ("newton_batch", 19),
        ("batch", 42),
        ("torch", 282),
    ],
)
def test_what_was_a_false_success_is_none(name, place):
    if name in ("newton_batch", "torch"):
        pytest.importorskip("numba" if name == "newton_batch" else "torch")
    system = KINDS[place % len(KINDS)](np.random.default_rng([7, place]))
    with np.errstate(all="ignore"):
        [(x, success, error, _)] = solver(name)([system])
    assert not success or system.error(x) <= RIGHT
    assert not success or error <= RIGHT
