"""Products and time of a trained layer against the length of walks and their bias (Kazi and Thompson 2017, section 4).

The published time grows as n^1.8 and does not depend on b. Here batches of 20 walks are solved, all of n steps, with
the weights of a run of ``benchmarks.experiments.walks`` and with first weights.

    python -m benchmarks.experiments.walks_work --load results/walks/inn100-bias0.5-....pt
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _walks import Law, draw
from benchmarks.experiments._run import command, write_json
from benchmarks.experiments.walks import INN, tensors

BATCH = 20


def measure(model: INN, bias: float, n: int, repeat: int, seed: int) -> dict[str, Any]:
    """Means over batches: products of the forward solve, and CPU seconds of it and of the gradients."""
    found = []
    for rng in np.random.default_rng([seed, n]).spawn(repeat):
        walks = draw(Law(bias), BATCH, rng, length=n)
        before, began = model.products, time.process_time()
        logits, solved = model(tensors(walks)[0], walks.lengths)
        forward = time.process_time() - began
        logits.sum().backward()
        seconds = time.process_time() - began - forward
        found.append((model.products - before, forward, seconds, int((~solved).sum())))
    names = ("products", "forward seconds", "gradient seconds", "unsolved")
    return {"bias": bias, "n": n} | dict(zip(names, np.mean(found, axis=0).tolist()))


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
    for path in options.load:
        state = torch.load(path, weights_only=False)
        settings, weights = state["settings"], state["best"]["parameters"]
        k = weights["hs"].numel()
        first = INN(settings["dimension"], k, torch.Generator().manual_seed(settings["seed"]), settings["scale"])
        trained = INN(settings["dimension"], k, torch.Generator())
        trained.load_state_dict(weights)
        cases = [("n", settings["bias"], n) for n in options.lengths] + [("b", bias, 40) for bias in options.bias]
        measure(trained, 1.0, 5, 1, options.seed)  # kernels are compiled
        for name, model in (("trained", trained), ("first", first)):
            for against, bias, n in cases:
                facts = measure(model, bias, n, options.repeat, options.seed)
                rows.append({"weights": name, "trained at": settings["bias"], "k": k, "against": against} | facts)
                print(rows[-1], flush=True)
                write_json(options.json, {"rows": rows}, options)


if __name__ == "__main__":
    main()
