"""A user's typed program: pyright finds a misspelled name and an argument of a wrong type, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
import numpy as np
import implicitsolve as ims

def F(x: np.ndarray, a: float = 2.0) -> np.ndarray:
    return x**2 - a

result = ims.root(F, [1.0, 2.0], args=(3.0,), tol=1e-8)
y: np.ndarray = result.x + result.fun
print(result.success, result.message, result.x.mean(), result.nfev, result.summary(), result.status.name)
J = result.jacobian().to_sparse("csr")
ims.root(F, np.ones(3), method="newton-krylov", stop=ims.NonlinearStop(atol=1e-8), bounds=(0, None))
ims.root(F, 1.0, previous=result, monitor=True, progress=True)
problem = ims.Problem(F, structure="detect", parameters={"a": np.ones(2)})
print(ims.pull_back(problem, result, np.ones(2)).gradients["a"].sum())
print(ims.push_forward(problem, result, {"a": 1.0}).tangent.max())
print(ims.continuation(F, np.ones(2), 0.0, 1.0).lam, ims.newton_krylov(F, [1.0], f_tol=1e-9))
ims.pull_back(ims.root(lambda s: s, {"u": np.ones(2)}, x_scale={"u": 2.0}), {"u": 1.0})
result.save("root.npz")
again: ims.NonlinearResult = ims.load("root.npz")
"""
WRONG = """
ims.root(3, [1.0])
ims.root(F, [1.0], method="newton-krilov")
ims.root(F, [1.0], metod="auto")
ims.root(F, [1.0], tol="tight")
ims.root(F, [1.0], stop=1e-3)
ims.root(F, F)
result.sumary()
result.x.meen()
ims.NonlinearStop(tol=1e-3)
ims.Problem(F, jacobian=F)
ims.Problem(F, structure="detekt")
ims.Newtonkrylov()
ims.jacobian(3, [1.0])
ims.newton_krylov(F, [1.0], line_search="armjo")
ims.SparseLU(engine="superlu")
ims.BlockNewton(reuse="cord")
"""


def test_a_typed_program(tmp_path: Path) -> None:
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    program = tmp_path / "program.py"
    program.write_text(RIGHT + WRONG)
    command = [pyright, "--pythonpath", sys.executable, str(program)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]).stdout
    found = [int(line.split(":")[1]) for line in lines.splitlines() if " - error: " in line]
    first = len(RIGHT.splitlines()) + 1
    assert found == list(range(first + 1, first + len(WRONG.splitlines()))), lines
