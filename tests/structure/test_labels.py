"""Names of unknowns and equations in what a caller reads."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.testing import check_derivatives

NODES = [f"pressure at node J-{k}" for k in range(20)]
BALANCES = [f"balance of J-{k}" for k in range(20)]
NAMED = {"names": NODES, "equations": {"balance": 20}}


def F(x):
    return np.where(np.arange(20) == 17, 0 * x + 1, x**3 - 1)  # no root: the equation 17 is 1, without its unknown


def test_explain_summary_and_errors_use_the_names():
    result = ims.root(ims.Problem(F, **NAMED), np.full(20, 0.5))
    said = " ".join(str(ims.diagnostics.explain(result, ims.Problem(F, **NAMED))).split())
    assert "pressure at node J-17" in said
    assert "balance[17]" in said
    assert "balance[17]: 1" in result.summary()
    with pytest.raises(ValueError, match="pressure at node J-0 = -1"):
        ims.root(ims.Problem(F, names=NODES, bounds=(0, 1)), -np.ones(20))
    wrong = ims.Problem(lambda x: x**3 - 1, equations=BALANCES, jac=lambda x: np.diag(3 * x**2 * (np.arange(20) != 4)))
    assert "balance of J-4" in str(check_derivatives(wrong, np.ones(20)))


def test_a_declared_pattern_that_is_singular_names_them():
    pattern = np.eye(20, dtype=bool)
    pattern[17] = pattern[16]
    named = ims.Problem(
        lambda x: pattern @ x - 1.0 * np.arange(20), structure=ims.Sparse(pattern), names=NODES, equations=BALANCES
    )
    with pytest.warns(RuntimeWarning, match=r"balance of J-16, balance of J-17 .* pressure at node J-17"):
        ims.root(named, np.zeros(20), method="sparse-newton")


def test_mistakes_raise():
    with pytest.raises(ValueError, match="`names` must be 3 names, got 20"):
        ims.root(ims.Problem(lambda x: x, names=NODES), np.ones(3))
    with pytest.raises(TypeError, match="`equations` must be names, or a mapping"):
        ims.Problem(F, equations="balance")
