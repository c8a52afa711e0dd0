"""Evaluating a problem and its Jacobian: calls and counts, differences, coloring, assembly."""
