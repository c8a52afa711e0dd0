"""Products and time of a trained layer against the length of walks and their bias (Kazi and Thompson 2017, section 4).

The published time grows as n^1.8 and does not depend on b, by at most 40 steps of Newton's method with at most 40
iterations of BiCGSTAB each, on all states ("published"). Here batches of 20 walks are solved, all of n steps, with the
weights of runs of ``benchmarks.experiments.walks`` and with first weights, so and by `root` with its defaults.

    python -m benchmarks.experiments.walks_work --load results/walks/inn100-bias0.5-....pt
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import implicitsolve as ims
from _walks import Law, draw
from benchmarks.experiments._layers import EXACT
from benchmarks.experiments._run import command, write_json
from benchmarks.experiments.walks import INN, tensors

BATCH = 20
LIMIT = 40  # of the paper's steps, and of the iterations in each
PUBLISHED = replace(
    EXACT,
    method=ims.NewtonKrylov(krylov=ims.BiCGSTAB(), max_krylov=LIMIT, retry=False),
    stop=ims.NonlinearStop(atol=1e-3, rtol=0.0, max_iterations=LIMIT),
)
SOLVERS = {"default": EXACT, "published": PUBLISHED}


def measure(model: INN, law: Law, n: int, repeat: int, seed: int) -> dict[str, Any]:
    """Means over batches: work of the forward solve, and CPU seconds of it and of the gradients."""
    found = []
    for rng in np.random.default_rng([seed, n]).spawn(repeat):
        walks = draw(law, BATCH, rng, length=n)
        began = time.process_time()
        states, result = model.layer(tensors(walks)[0], walks.lengths, hs=model.hs, he=model.he, return_result=True)
        forward = time.process_time() - began
        states.sum().backward()
        seconds = time.process_time() - began - forward
        most = max((int(np.max(step.krylov_iterations, initial=0)) for step in result.steps), default=0)
        steps = result.iterations
        work = result.counts.residuals + result.counts.jvps, float(np.mean(steps)), int(np.max(steps)), most
        found.append((*work, forward, seconds, int(np.sum(~result.success))))
    names = ("products", "mean steps", "most steps", "most inner iterations", "forward seconds", "gradient seconds")
    return {"bias": law.bias, "n": n} | dict(zip((*names, "unsolved"), np.mean(found, axis=0).tolist()))


def main() -> None:
    """Read the command line, and measure at every length and bias."""
    parser = command("walks_work", "Products and time of a trained layer against the length of walks and their bias.")
    add = parser.add_argument
    add("--load", type=Path, nargs="+", required=True, help="checkpoints of benchmarks.experiments.walks")
    add("--lengths", type=int, nargs="+", default=[5, 10, 20, 40, 80], help="default 5 10 20 40 80")
    add("--bias", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0], help="at 40 steps (default 0.25 0.5 1 2)")
    add("--repeat", type=int, default=5, help="batches (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    paths, options.load = options.load, [path.name for path in options.load]
    for path in paths:
        state = torch.load(path, weights_only=False)
        settings, weights = state["settings"], state["best"]["parameters"]
        k = weights["hs"].numel()
        first = INN(settings["dimension"], k, torch.Generator().manual_seed(settings["seed"]), settings["scale"])
        trained = INN(settings["dimension"], k, torch.Generator())
        trained.load_state_dict(weights)
        cases = [("n", settings["bias"], n) for n in options.lengths] + [("b", bias, 40) for bias in options.bias]
        law = Law(settings["bias"], settings["law"], settings["dimension"], settings["norm"])
        names = {"trained at": settings["bias"], "seed": settings["seed"], "k": k}
        for (name, model), solver in itertools.product((("trained", trained), ("first", first)), SOLVERS):
            model.layer.solve_options = SOLVERS[solver]
            measure(model, law, 5, 1, options.seed)  # kernels are compiled
            for against, bias, n in cases:
                facts = measure(model, replace(law, bias=bias), n, options.repeat, options.seed)
                rows.append({"weights": name, "solver": solver} | names | {"against": against} | facts)
                print(rows[-1], flush=True)
                write_json(options.json, {"rows": rows}, options)


if __name__ == "__main__":
    main()
