"""SciPy's own tests of newton_krylov, with its entry replaced by ours."""

import subprocess
import sys
from pathlib import Path

import scipy.optimize

RUNNER = """
import sys
import pytest
import implicitsolve
from scipy.optimize import _nonlin

calls = 0

def ours(*args, **kwargs):
    global calls
    calls += 1
    return implicitsolve.newton_krylov(*args, **kwargs)

_nonlin.newton_krylov = ours
options = ["-q", "-p", "no:cacheprovider", "-k", "TestNonlin", "-o", "addopts=", "-c", sys.argv[2]]
code = pytest.main([sys.argv[1], *options])
print("calls of ours:", calls)
sys.exit(int(code) if calls > 20 else 99)
"""


def test_scipy_own_tests_of_newton_krylov_pass(tmp_path: Path) -> None:
    """The tests are SciPy's; `calls` proves that they ran our solver."""
    suite = Path(scipy.optimize.__file__).parent / "tests" / "test_nonlin.py"
    assert suite.exists(), f"SciPy's tests are not installed: {suite}"
    config = tmp_path / "pytest.ini"
    config.write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-c", RUNNER, str(suite), str(config)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "passed" in run.stdout
