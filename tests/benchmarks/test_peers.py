import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.benchmarks.workloads import Bratu, Brusselator, Brusselators, Burgers, Elman, ImplicitGRU
from benchmarks.peers._layers import NumpyGRU, jax_gru, torch_gru
from benchmarks.peers._measure import Answer, Race, Row, Solver
from benchmarks.peers._run import RIVALS, offers
from benchmarks.peers._targets import verdicts

ROOT = Path(__file__).parents[2]
SMALL = {
    "gru": lambda: ImplicitGRU.draw(2, 7, 9, 1.0),
    "gru, float32": lambda: ImplicitGRU.draw(2, 7, 9, 1.0, np.float32),
    "bratu": lambda: Bratu.draw(300),
    "burgers": lambda: Burgers.draw(300),
    "brusselator": lambda: Brusselator.draw(40, 2),
    "brusselators": lambda: Brusselators.draw(6, 8),
    "elman": lambda: Elman.draw(2, 20, 5),
}


@dataclass(frozen=True)
class Halving:
    """x = 0 to 1e-3: solvers that stop at their tolerance return it."""

    target: float = 1e-3

    def size(self, x):
        return abs(float(x))

    def solved(self, x):
        return self.size(x) <= self.target


def stand_still(seconds):
    def solve(tolerance):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return Answer(np.float64(0.0), 3)

    return solve


def test_solvers_are_compared_by_their_medians():
    solvers = [Solver("us", "root", stand_still(0.002), is_ours=True), Solver("them", "slow", stand_still(0.02))]
    ours, theirs = Race(repeat=3).run(Halving(), solvers)
    assert ours.ratio == 1.0
    assert len(theirs.seconds) == 3
    assert len(ours.seconds) == 6  # its own turns, and one beside each of the rival's
    assert 3.0 < theirs.ratio < 30.0
    assert theirs.products == 3


@pytest.mark.parametrize(("constant", "tolerance"), [(1.0, 1e-3), (0.05, 1e-2), (1e-3, 1e-1)])
def test_the_loosest_tolerance_that_meets_the_target_is_timed(constant, tolerance):
    asked = []

    def solve(tol):
        asked.append(tol)
        return Answer(np.float64(constant * tol))

    row, run = Race().try_out(Halving(), Solver("them", "", solve, (100.0, 10.0, 1.0)))
    assert row.status == "solved"
    assert row.tolerance == pytest.approx(tolerance)
    run()
    assert asked[-1] == pytest.approx(tolerance)


def test_a_solver_that_claims_too_much_has_failed():
    row, run = Race().try_out(Halving(), Solver("them", "", lambda tol: Answer(np.float64(0.5)), (10.0, 1.0)))
    assert (row.status, row.residual, run) == ("failed", 0.5, None)


def test_what_takes_too_long_is_stopped():
    begin = time.process_time()
    row, run = Race(limit=0.1).try_out(Halving(), Solver("them", "", stand_still(30.0)))
    assert (row.status, run) == ("longer than 0.1 s", None)
    assert time.process_time() - begin < 10.0


def test_a_failed_default_of_ours_leaves_no_ratio():
    solvers = [
        Solver("us", "root", lambda tol: Answer(np.float64(1.0)), is_ours=True),
        Solver("them", "", lambda tol: Answer(np.float64(0.0))),
    ]
    ours, theirs = Race(repeat=2).run(Halving(), solvers)
    assert ours.status == "failed"
    assert theirs.seconds
    assert theirs.ratio is None


@pytest.mark.parametrize(
    ("rival", "dtype"), [("numpy", np.float32), ("numpy", float), ("torch", float), ("jax", float)]
)
def test_residuals_written_for_the_rivals_are_the_workloads(rival, dtype, rng):
    library = pytest.importorskip(rival)
    workload = ImplicitGRU.draw(2, 5, 6, 2.0, dtype)
    H = rng.uniform(-1, 1, workload.x0.shape).astype(dtype)
    if rival == "numpy":
        G = NumpyGRU(workload.params, workload.inputs, H.shape)
        G(np.ones_like(H))  # buffers keep nothing
        found = G(H)
    elif rival == "torch":
        found = torch_gru(workload.params, workload.inputs)(library.from_numpy(H)).numpy()
    else:
        with library.enable_x64(True):
            found = np.asarray(jax_gru(workload.params, workload.inputs)(H))
    np.testing.assert_allclose(found, H - workload.residual(H), atol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("rival", ["ours", *RIVALS])
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_solvers_solve_or_say_that_they_failed(rival, name):
    workload = SMALL[name]()
    solvers, missing = offers(rival, workload)
    if missing:
        pytest.skip(missing[0].status)
    solvers = [solver for solver in solvers if "compiled" not in solver.method]  # compiling takes long
    tried = [Race(limit=60.0).try_out(workload, solver)[0] for solver in solvers]
    assert all(row.status in ("solved", "failed") or row.method == "Chord, GMRES" for row in tried)
    for row in tried:
        assert (row.status == "solved") == (row.residual is not None and row.residual <= 1.0001 * workload.target)
    if rival == "ours":
        assert all(row.status == "solved" for row in tried)
        assert all(row.products > 0 for row in tried if "not measured" not in row.method)
    elif tried:
        assert any(row.status == "solved" for row in tried)


def results(median, products):
    ours = Row("implicitsolve", "root", True, "solved", products=products, seconds=[1.0])
    rival = Row("SciPy", "newton_krylov, gmres", False, "solved", seconds=[median])
    failed = Row("fast", "but wrong", False, "failed", residual=1.0)
    return {"workloads": [{"key": "W1-k200-s1", "rows": [row.record() for row in (ours, rival, failed)]}]}


@pytest.mark.parametrize(
    ("median", "products", "expected"), [(7.0, 17, ["met"] * 3), (4.0, 18, ["missed", "met", "missed"])]
)
def test_targets(median, products, expected):
    found = [row["verdict"] for row in verdicts(results(median, products)) if row["target"].startswith("W1-k200-s1:")]
    assert found[:3] == expected
    assert set(found[3:]) == {"not measured"}


def test_rivals_that_fail_are_beaten():
    found = results(7.0, 17)
    found["workloads"][0]["rows"][1] |= {"seconds": [], "residual": 1.0}
    verdict = {row["target"]: row for row in verdicts(found)}["W1-k200-s1: SciPy's newton_krylov / ours"]
    assert (verdict["verdict"], verdict["measured"]) == ("met: the rivals fail", None)
    found["workloads"][0]["rows"][0] |= {"seconds": []}
    assert {row["verdict"] for row in verdicts(found) if "rival" in row["target"]} == {"not measured"}


def test_threads_are_limited_before_numpy_is_imported():
    code = "import benchmarks.peers._threads, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
