"""Write the page "Performance" of the docs from what asv and `benchmarks.peers` measured."""

from __future__ import annotations
