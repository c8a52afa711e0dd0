"""How JAX computes in these tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def compiled_quickly() -> Iterator[None]:
    """Most of these tests' time is XLA's."""
    jax = pytest.importorskip("jax", exc_type=ImportError)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Double precision, but where a test is marked as of single precision."""
    jax = pytest.importorskip("jax", exc_type=ImportError)
    with jax.enable_x64("single" not in request.node.name):
        yield
