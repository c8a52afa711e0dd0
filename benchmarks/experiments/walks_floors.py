"""Bayes-optimal errors of walks by the norm of the drift's direction v, which the paper does not give.

No model has a smaller error: a law whose floor is above a published error cannot be the paper's.

    python -m benchmarks.experiments.walks_floors
"""

from __future__ import annotations

import dataclasses

import numpy as np

from _walks import Law, bayes_floor
from benchmarks.experiments._run import command, write_json


def main() -> None:
    """Read the command line, and estimate the floor of each law."""
    parser = command("walks_floors", "Bayes-optimal errors of walks by the norm of v.")
    parser.add_argument("--bias", type=float, nargs="+", default=[2.0, 1.0, 0.75, 0.5, 0.25], help="b")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 2, 3], help="of v = (1, ..., 1)")
    parser.add_argument("--walks", type=int, default=50_000, help="default %(default)s")
    options = parser.parse_args()
    rows = []
    for d in options.dimensions:
        for bias in options.bias:
            law = Law(bias, "common", d, d**0.5)
            floor = bayes_floor(law, options.walks, np.random.default_rng(options.seed))
            rows.append({"dimension": d, "bias": bias, "floor": dataclasses.asdict(floor)})
            print(rows[-1], flush=True)
    write_json(options.json, {"rows": rows}, options)


if __name__ == "__main__":
    main()
