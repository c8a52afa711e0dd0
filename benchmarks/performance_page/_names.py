"""What readers call the workloads; rows of the page and of its figures carry these names, in this order."""

from __future__ import annotations

NAMES = {
    "W2-bratu-1e4": "Bratu, 10⁴ unknowns",
    "W2-bratu-1e5": "Bratu, 10⁵ unknowns",
    "W2-burgers-1e4": "Burgers, 10⁴ unknowns",
    "W2-burgers-1e5": "Burgers, 10⁵ unknowns",
    "W3-k2": "Brusselator, 2 species",
    "W3-k8": "Brusselators, 8 species",
    "W4": "batch of 10⁴ Brusselators",
    "W1-k200-s1": "implicit GRU, 200 states",
    "W1-k200-s2": "implicit GRU, 200 states, recurrent weights × 2",
    "W1-k200-s3": "implicit GRU, 200 states, recurrent weights × 3",
    "W1-k448-s1": "implicit GRU, 448 states",
    "W1-k200-s1-float32": "implicit GRU, 200 states, float32",
    "W1-k448-s1-float32": "implicit GRU, 448 states, float32",
    "W5": "Elman network",
}


def name(key: str) -> str:
    """The name of a workload, or its key where it has none."""
    return NAMES.get(key, key)


def place(key: str) -> int:
    """Its place on the page; workloads without a name come last."""
    return [*NAMES, key].index(key)
