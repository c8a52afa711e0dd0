"""Train an implicit-GRU part-of-speech tagger on UD English EWT, in NumPy alone.

    python examples/pos_tagging.py --save model.npz --predict dev-tagged.conllu
    python examples/pos_tagging.py --load model.npz --tag "Time flies like an arrow."

Every sentence is one nonlinear system: its hidden states solve h_i = f(h_{i-1}, h_{i+1}, xi_i) together
(Kazi and Thompson, ACL 2017). See docs/examples/pos_tagging.md for the measured learning curve.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _tagging.conllu import COLUMNS, Sentence, read_conllu, write_conllu
from _tagging.errors import UserError
from _tagging.features import Encoded, Encoder
from _tagging.figure import save_curve
from _tagging.files import atomic_write, check_writable, find_treebank
from _tagging.model import Sizes, SolverOptions, Tagger
from _tagging.model_file import load_model, save_model
from _tagging.optimisers import OPTIMISERS
from _tagging.training import STARTS, EpochReport, TrainingOptions, evaluate, train

QUICK_EPOCHS, QUICK_SENTENCES = 2, 2500

_TOKEN = re.compile(
    r"https?://\S+?(?=[.,;:!?)\]]*(?:\s|$))|\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\d+(?:[.,:]\d+)*|(?:\w\.){2,}|\w+|\.{2,}|[^\w\s]",
    re.IGNORECASE,
)
"""Tokens of a sentence, about as in the treebank: do n't, it 's, 3.50, U.S., punctuation apart."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # training checks what it uses
            run(options)
    except UserError as error:
        print(f"pos_tagging: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pos_tagging: interrupted; files that were asked for are complete or absent", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Load or train a tagger, then carry out the requested actions."""
    for path in (options.save, options.predict, options.json, options.figure):
        if path is not None:
            check_writable(path)
    began = time.perf_counter()
    if options.tag is not None and not _TOKEN.search(options.tag):
        raise UserError("--tag: a sentence with at least one word was expected")
    loaded, column = None, options.column or "xpos"
    if options.load is not None:
        loaded, column = load_model(options.load)
        if options.column not in (None, column):
            raise UserError(f"{options.load}: this model predicts {column}, not {options.column}")
    solver = SolverOptions(forward=options.forward_tolerance, adjoint=options.adjoint_tolerance)
    needs_treebank = options.epochs or options.predict or options.json or options.tag is None
    if loaded is None or needs_treebank:
        tagger = _run_on_treebank(options, loaded, column, solver, began)
    else:
        tagger = loaded
    if options.tag is not None:
        print(tag_sentence(tagger, options.tag, solver))


def _run_on_treebank(
    options: argparse.Namespace, tagger: Tagger | None, column: str, solver: SolverOptions, began: float
) -> Tagger:
    train_path, dev_path = find_treebank(options.data)
    dev = read_conllu(dev_path, column)
    reports: list[EpochReport] = []
    if options.epochs or tagger is None:
        corpus = read_conllu(train_path, column)[: options.limit]
        tagger = _new_tagger(corpus, options) if tagger is None else tagger
        reports = _train(tagger, corpus, dev, column, options, solver)
        print(f"best dev accuracy {max(r.dev.score.accuracy for r in reports):.4f}", end="")
        print(f" after {time.perf_counter() - began:.0f} s in all")
    if options.predict is not None or not reports:
        final = evaluate(tagger, _encode(tagger.encoder, dev), solver)
        unsolved = f", {final.score.work.unsolved} sentences unsolved" if final.score.work.unsolved else ""
        print(f"dev accuracy {final.score.accuracy:.4f}, perplexity {final.score.perplexity:.4f}{unsolved}")
        if options.predict is not None:
            write_conllu(options.predict, dev, final.tags, column)
            print(f"predictions: {options.predict}")
    if options.json is not None:
        _write_json(options.json, tagger, column, reports, options, solver)
        print(f"results: {options.json}")
    if options.figure is not None:
        print(save_curve(options.figure, reports) if reports else "figure skipped: nothing was trained")
    return tagger


def _new_tagger(corpus: Sequence[Sentence], options: argparse.Namespace) -> Tagger:
    encoder = Encoder.from_sentences(corpus)
    return Tagger.initial(encoder, Sizes(state=options.state), np.random.default_rng(options.seed))


def _encode(encoder: Encoder, sentences: Sequence[Sentence]) -> list[Encoded]:
    return [encoder.encode(sentence.forms, sentence.tags) for sentence in sentences]


def _train(
    tagger: Tagger,
    corpus: Sequence[Sentence],
    dev: Sequence[Sentence],
    column: str,
    options: argparse.Namespace,
    solver: SolverOptions,
) -> list[EpochReport]:
    """Train, print a line for each epoch, keep the best parameters, in the model file too."""
    training = TrainingOptions(
        epochs=options.epochs,
        batch_words=options.batch_words,
        optimiser=options.optimiser,
        rate=options.rate,
        decay=options.decay,
        dropout=options.dropout,
        word_dropout=options.word_dropout,
        start=options.start,
        seed=options.seed,
    )
    words = sum(len(sentence.forms) for sentence in corpus)
    sizes = tagger.sizes
    print(f"{len(corpus)} sentences, {words} words, {len(tagger.encoder.tags)} tags; input {sizes.input}, ", end="")
    print(f"state {sizes.state}; {training.optimiser}, batches of about {training.batch_words} words", flush=True)
    reports: list[EpochReport] = []
    best_accuracy, best_parameters = -1.0, tagger.parameters
    encoded = _encode(tagger.encoder, corpus), _encode(tagger.encoder, dev)
    for report in train(tagger, *encoded, training, solver):
        reports.append(report)
        print(describe(report), flush=True)
        if report.dev.score.accuracy > best_accuracy:
            best_accuracy = report.dev.score.accuracy
            best_parameters = {name: value.copy() for name, value in tagger.parameters.items()}
            if options.save is not None:
                save_model(options.save, tagger, column)
    tagger.parameters.update(best_parameters)
    return reports


def describe(report: EpochReport) -> str:
    """One line about an epoch."""
    dev, work = report.dev.score, report.train.work.per_batch()
    line = (
        f"epoch {report.epoch}: dev accuracy {dev.accuracy:.4f}, perplexity {dev.perplexity:.4f}; "
        f"{report.seconds:.1f} s + {report.dev.seconds:.1f} s; "
        f"per batch {work['steps']:.1f} steps, {work['products']:.1f} products, "
        f"{work['adjoint_products']:.1f} adjoint products"
    )
    failures = {
        "forward solves (left out)": report.train.work.unsolved,
        "adjoint solves": report.train.work.unsolved_adjoint,
        "dev solves": dev.work.unsolved,
    }
    failed = ", ".join(f"{count} {what}" for what, count in failures.items() if count)
    return f"{line}; NOT CONVERGED: {failed} of {report.train.work.sentences} sentences" if failed else line


def tag_sentence(tagger: Tagger, text: str, solver: SolverOptions) -> str:
    """Divide a sentence into words and tag them: ``word/TAG word/TAG``."""
    forms = _TOKEN.findall(text)
    evaluation = evaluate(tagger, [tagger.encoder.encode(forms)], solver)
    if evaluation.score.work.unsolved:
        print("pos_tagging: warning: the layer was not solved for this sentence", file=sys.stderr)
    return " ".join(f"{form}/{tag}" for form, tag in zip(forms, evaluation.tags[0], strict=True))


def _write_json(
    path: Path,
    tagger: Tagger,
    column: str,
    reports: Sequence[EpochReport],
    options: argparse.Namespace,
    solver: SolverOptions,
) -> None:
    results: dict[str, Any] = {
        "example": "pos_tagging",
        "column": column,
        "sizes": {**dataclasses.asdict(tagger.sizes), "input": tagger.sizes.input, "tags": len(tagger.encoder.tags)},
        "solver": dataclasses.asdict(solver),
        "options": {
            name: str(value) if isinstance(value, Path) else value for name, value in sorted(vars(options).items())
        },
        "epochs": [report.as_dict() for report in reports],
    }
    with atomic_write(path) as file:
        file.write((json.dumps(results, indent=2) + "\n").encode())


# ------------------------------------------------------------------------------------------------------- command line


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="pos_tagging", description="Implicit-GRU part-of-speech tagger on UD English EWT."
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)")
    add("--column", choices=tuple(COLUMNS), help="which tags (default: xpos, the Penn Treebank's)")
    add("--limit", type=_number(int, 1), help="use only the first LIMIT training sentences")
    add("--epochs", type=_number(int, 0), help=f"default {TrainingOptions.epochs}; 0 with --load")
    add("--quick", action="store_true", help=f"--epochs {QUICK_EPOCHS} --limit {QUICK_SENTENCES} unless given")
    add("--state", type=_number(int, 1), default=Sizes.state, help="k, the width of the state (default %(default)s)")
    add("--optimiser", choices=tuple(OPTIMISERS), default=TrainingOptions.optimiser, help="default %(default)s")
    add("--rate", type=_number(float, 0), help="learning rate (default: the optimiser's; sgd 0.5, adam 0.005)")
    add("--decay", type=_number(float, 0, 1), default=TrainingOptions.decay, help="of the rate, after every epoch")
    add("--dropout", type=_number(float, 0, 0.99), default=TrainingOptions.dropout, help="of inputs")
    add("--word-dropout", type=_number(float, 0), default=TrainingOptions.word_dropout, help="of rare words")
    add("--batch-words", type=_number(int, 1), default=TrainingOptions.batch_words, help="default %(default)s")
    add("--start", choices=STARTS, default=TrainingOptions.start, help="of the solver (default %(default)s)")
    add("--forward-tolerance", type=_number(float, 0), default=SolverOptions.forward, help="default %(default)s")
    add("--adjoint-tolerance", type=_number(float, 0), default=SolverOptions.adjoint, help="default %(default)s")
    add("--seed", type=_number(int, 0), default=0)
    add("--load", type=Path, metavar="MODEL", help="start from a saved model; trains only with --epochs")
    add("--save", type=Path, metavar="MODEL", help="write the best model so far after every epoch that improves it")
    add("--predict", type=Path, metavar="CONLLU", help="write the dev part with predicted tags")
    add("--tag", metavar="SENTENCE", help="tag a sentence and print word/TAG pairs")
    add("--json", type=Path, metavar="FILE", help="write the results")
    add("--figure", type=Path, metavar="PNG", help="draw the learning curve (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs = QUICK_EPOCHS if options.epochs is None else options.epochs
        options.limit = QUICK_SENTENCES if options.limit is None else options.limit
    if options.epochs is None:
        options.epochs = TrainingOptions.epochs if options.load is None else 0
    if options.epochs == 0 and options.load is None:
        parser.error("--epochs 0 needs --load")
    if options.save is not None and options.load is not None and not options.epochs:
        parser.error("--save with --load needs --epochs: nothing would be trained")
    return options


def _number(kind: type[int] | type[float], least: float, most: float = float("inf")) -> Callable[[str], float]:
    """Parser of a number from `least` to `most`, for argparse."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most or value == float("inf"):
            limits = f"at least {least}" if most == float("inf") else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text}: a number {limits} expected")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
