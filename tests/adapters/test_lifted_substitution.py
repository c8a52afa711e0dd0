"""Lifted nets whose A has no circle: solved by substitution, level by level."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse

from implicitsolve.adapters import lifted_net
from tests.adapters.lifted import ACTIVATIONS, BATCH, FORMS, K, N, P, T, banded, close


def strictly_lower(rng, n=N):
    return np.tril(rng.uniform(-1, 1, (n, n)), -1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_triangular_net_is_solved_by_substitution(form, activation, rng):
    for A in (strictly_lower(rng), np.triu(rng.uniform(-1, 1, (N, N)), K)):
        A = A if form is not FORMS["banded"] else banded(A).todense()
        B, u = rng.standard_normal((N, P)), rng.standard_normal((BATCH, P))
        net = lifted_net(form(A), B, u, activation=activation)
        assert net.substitute is not None
        x = net.substitute()
        assert x.flags.c_contiguous
        close(net.residual(x), np.zeros_like(x), 1e-14 * max(1.0, np.abs(x).max()))
        close(lifted_net(form(A), B, u[0], activation=activation).substitute(), x[0], 1e-14)


@pytest.mark.parametrize("triangle", [1, K])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_jacobian_of_a_triangular_net_knows_its_inverse(form, activation, triangle, rng):
    A = np.triu(rng.uniform(-1, 1, (N, N)), triangle)
    A = A if form is not FORMS["banded"] else banded(A).todense()
    net = lifted_net(form(A), rng.standard_normal((N, P)), rng.standard_normal((BATCH, P)), activation=activation)
    x, b = rng.standard_normal((2, BATCH, N))
    J = net.linearize(x)[1]
    inverse = J.approximate_inverse()
    for product, solve in ((J.matvec, inverse.matvec), (J.rmatvec, inverse.rmatvec)):
        close(product(solve(b)), b, 1e-12)
    kept = np.array([2, 0])
    close(inverse.take(kept).rmatvec(b[kept]), inverse.rmatvec(b)[kept])
    close(J.take(kept).approximate_inverse().matvec(b[kept]), inverse.matvec(b)[kept])
    single = lifted_net(form(A), np.zeros((N, 1)), np.ones(1), activation=activation).linearize(x[0])[1]
    close(single.matvec(single.approximate_inverse().matvec(b[0])), b[0], 1e-12)

    half = J.astype(np.float32)
    b32 = b.astype(np.float32)
    for product in (half.matvec, half.rmatvec, half.approximate_inverse().matvec):
        assert product(b32).dtype == np.float32
    close(half.matvec(b32), J.matvec(b), 1e-5)
    close(half.approximate_inverse().rmatvec(b32), inverse.rmatvec(b), 1e-4)


def test_a_net_with_cycles_has_no_inverse(rng):
    B, u, x = rng.standard_normal((N, P)), rng.standard_normal(P), rng.standard_normal(N)
    assert lifted_net(np.diag(np.ones(N)), B, u).linearize(x)[1].approximate_inverse() is None
    assert lifted_net(np.zeros((N, N)), B, u).linearize(x)[1].approximate_inverse() is not None


@pytest.mark.parametrize("name", ["dense", "csr", "bsr"])
def test_unknowns_need_no_order(name, rng):
    order = rng.permutation(N)
    A = strictly_lower(rng)[np.ix_(order, order)]
    net = lifted_net(FORMS[name](A), rng.standard_normal((N, P)), rng.standard_normal((BATCH, P)))
    x = net.substitute()
    close(net.residual(x), np.zeros_like(x), 1e-15)


@pytest.mark.parametrize("name", ["dense", "csr", "bsr", "oblong", "banded"])
def test_a_circle_is_found(name, rng):
    A = strictly_lower(rng)
    A[0, -1] = 1.0  # with A[-1, 0] a circle of two
    if name == "banded":
        A[0, 1] = 1.0
        A = banded(A).todense()
    net = lifted_net(FORMS[name](A), rng.standard_normal((N, P)), rng.standard_normal(P))
    assert net.substitute is None
    A = np.diag(np.r_[np.zeros(N - 1), 0.5])
    assert lifted_net(FORMS[name](A), np.ones((N, P)), np.ones(P)).substitute is None


def test_stored_zeros_make_no_circle(rng):
    A = scipy.sparse.csr_array(np.ones((N, N)))
    A.data[:] = strictly_lower(rng).ravel()
    assert A.nnz == N * N
    assert lifted_net(A, np.ones((N, P)), np.ones(P)).substitute is not None


@pytest.mark.parametrize("name", ["dense", "banded"])
def test_substitution_in_another_library(name, rng):
    xp = array_api_strict
    A = banded(strictly_lower(rng)).todense()
    A = A - np.tril(np.triu(A, -K), K) * np.kron(np.eye(T), np.ones((K, K)))  # strictly block triangular
    B, u = rng.standard_normal((N, P)), rng.standard_normal((BATCH, P))
    other = xp.asarray(A) if name == "dense" else banded(xp.asarray(A))
    x = lifted_net(other, xp.asarray(B), xp.asarray(u)).substitute()
    close(x, lifted_net(A, B, u).substitute(), 1e-15)
