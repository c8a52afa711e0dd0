"""Which neighbour each word of a sentence listens to (Kazi 2016, Figures 3 and 4): the mean of 1 - 2 s over the state.

Above zero, more of the state comes from the next word than from the previous one.

    python examples/pos_tagging.py --save tagger.npz
    python -m benchmarks.experiments.switch --load tagger.npz --sentence "The old man the boat ."
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from _tagging.batches import collate
from _tagging.model import LAYER, SolverOptions, Tagger
from _tagging.model_file import load_model
from benchmarks.experiments._run import command, write_figure, write_json
from pos_tagging import _TOKEN


def directions(tagger: Tagger, forms: list[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Mean of 1 - 2 s for each word, and the tags."""
    batch = collate([tagger.encoder.encode(forms)], np.asarray([0]))
    forward = tagger.forward(batch, SolverOptions(forward=1e-6))
    p, inputs = tagger.parameters, forward.problem.parameters["inputs"]
    layer = {name: p[name] for name in LAYER}
    s = ims.adapters.gru_switch(layer, inputs, forward.result.x, lengths=batch.lengths, hs=p["hs"], he=p["he"])
    tags = [tagger.encoder.tags[i] for i in forward.log_probabilities.argmax(axis=1)]
    return (1.0 - 2.0 * s[0]).mean(axis=1), tags


def figure(path: Path, forms: list[str], values: np.ndarray[Any, Any], tags: list[str]) -> None:
    """One bar for each word."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(max(4.0, 0.7 * len(forms)), 3.2), layout="constrained")
    axes = drawn.subplots()
    axes.bar(range(len(forms)), values, color=["C0" if value > 0 else "C1" for value in values])
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(forms)), [f"{form}\n{tag}" for form, tag in zip(forms, tags)])
    axes.set_ylabel("mean of 1 - 2 s\n(previous < 0 < next word)")
    write_figure(path, drawn)


def main() -> None:
    """Read the command line, draw and print."""
    parser = command("switch", "Which neighbour each word of a sentence listens to.")
    parser.add_argument("--load", type=Path, required=True, help="a model of examples/pos_tagging.py")
    parser.add_argument("--sentence", required=True, help="words and punctuation, as in running text")
    options = parser.parse_args()
    forms = _TOKEN.findall(options.sentence)
    if not forms:
        parser.error("--sentence: at least one word expected")
    tagger, _ = load_model(options.load)
    values, tags = directions(tagger, forms)
    figure(options.folder / "switch.png", forms, values, tags)
    rows = [{"word": w, "tag": t, "mean of 1 - 2 s": float(v)} for w, t, v in zip(forms, tags, values)]
    write_json(options.json, {"words": rows}, options)
    for word, tag, value in zip(forms, tags, values):
        print(f"{word:>16} {tag:5} {value:+.3f}")


if __name__ == "__main__":
    main()
