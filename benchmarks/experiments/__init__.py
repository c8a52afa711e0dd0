"""The papers' experiments on generated and real data, each a command: ``python -m benchmarks.experiments.NAME``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))  # whose data and taggers these use
