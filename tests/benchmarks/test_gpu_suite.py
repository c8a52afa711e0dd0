import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.rows import Failures, Row

ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.slow
def test_dry_run(double, tmp_path):
    command = [sys.executable, "benchmarks/gpu_suite.py", "--dry-run", "--json", str(tmp_path / "gpu.json")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert all(row["right"] for row in rows)
    workloads = {row["workload"].split()[0] for row in rows}
    assert {"W1", "block", "Bratu", "Elman", "GRU", "memory"} <= workloads
    assert f"{len(rows)} rows, 0 wrong" in run.stdout


@pytest.mark.parametrize(("error", "wrong"), [(1e-5, 0), (1e-3, 1), (float("nan"), 1), (float("inf"), 1)])
def test_errors_beyond_their_bound_are_wrong(error, wrong):
    failures = Failures()
    failures.note(Row("any", "solve", 2.0, error, 1e-4, asked=1.0))
    assert (failures.count, failures.slow) == (wrong, 1)


def test_rows_without_a_target_are_not_slow():
    failures = Failures()
    failures.note(Row("any", "solve", 2.0, 0.0, 1e-4))
    assert failures.slow == 0
