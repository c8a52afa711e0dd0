"""CPU seconds of training steps of language models at the published sizes (Wang and Ragni, section 4).

The words are drawn at random: the time of a step depends on the sizes alone, not on what the text says.

    python -m benchmarks.experiments.language_time
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.experiments._run import command, write_json
from benchmarks.experiments.language import FORMS, LanguageModel

WORDS, EPOCHS = 2_051_910, 40  # of WikiText-2, and what the paper trains for


def main() -> None:
    """Read the command line, and time each form."""
    parser = command("language_time", "Seconds of training steps of language models at the published sizes.")
    add = parser.add_argument
    add("--state", type=int, default=200, help="k (default %(default)s)")
    add("--vocabulary", type=int, default=33_278, help="default %(default)s")
    add("--batch", type=int, default=20, help="lines (default %(default)s)")
    add("--length", type=int, default=55, help="words of a line (default %(default)s)")
    add("--rho", type=int, default=5, help="iterations (default %(default)s)")
    add("--repeat", type=int, default=2, help="steps after a first one (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = list(np.random.default_rng(options.seed).integers(1, options.vocabulary, (options.batch, options.length)))
    rows: list[dict[str, Any]] = []
    for form in FORMS:
        model = LanguageModel(options.vocabulary, options.state, options.rho, form, options.seed)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(options.repeat + 1):
            if step <= 1:  # kernels are compiled and memory is touched in the first one
                began = time.process_time()
            optimizer.zero_grad()
            model.loss(lines)[0].backward()
            optimizer.step()
        seconds = (time.process_time() - began) / options.repeat / options.batch / options.length
        rows.append({"form": form, "seconds per word": seconds, "hours of training": seconds * WORDS * EPOCHS / 3600})
        print(rows[-1], flush=True)
        write_json(options.json, {"words": WORDS, "epochs": EPOCHS, "rows": rows}, options)


if __name__ == "__main__":
    main()
