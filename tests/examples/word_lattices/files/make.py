"""Make the files of this folder, with PocketSphinx 5.1.1 and OpenFst (pynini 2.1.6), by no code of the package.

    pip install pocketsphinx==5.1.1 pynini==2.1.6.post1 numpy
    python make.py goforward.raw    # test/data/goforward.raw of github.com/cmusphinx/pocketsphinx

`goforward.slf` is the lattice of PocketSphinx's American English model, as its `write_htk` writes it. `goforward.best`
are OpenFst's n-best word sequences of it. `weather.fst` is an acceptor of OpenFst, printed, and `weather.best` and
`weather.best2` its n-best sequences before and after composition with the trigram model of an Elman network.
"""

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pocketsphinx
import pynini

HERE = Path(__file__).parent
SETS = ("the a", "weather whether", "is was", "find fine vine", "to too two", "day die")
WORDS = ["<s>", "</s>", "<unk>", *" ".join(SETS).split(), "today"]


def recognized(audio: str) -> None:
    """Let PocketSphinx write the lattice of a recording."""
    decoder = pocketsphinx.Decoder(loglevel="FATAL", wbeam=1e-20, beam=1e-30)
    decoder.start_utt()
    decoder.process_raw(Path(audio).read_bytes(), full_utt=True)
    decoder.end_utt()
    decoder.get_lattice().write_htk(str(HERE / "goforward.slf"))


def of_slf(text: str) -> tuple[pynini.Fst, pynini.SymbolTable]:
    """The same lattice as an acceptor."""
    names, symbols, fst = {}, pynini.SymbolTable(), pynini.Fst()
    symbols.add_symbol("<eps>")
    for node, word in re.findall(r"^I=(\d+)\t.*W=(\S+)", text, re.MULTILINE):
        names[int(node)] = 0 if word.startswith("!") else symbols.add_symbol(word)
    fst.add_states(len(names))
    fst.set_start(int(re.search(r"start=(\d+)", text)[1])).set_final(int(re.search(r"end=(\d+)", text)[1]))
    for source, target, score in re.findall(r"S=(\d+)\tE=(\d+)\ta=(\S+)", text):
        word = names[int(target)]
        fst.add_arc(int(source), pynini.Arc(word, word, -float(score), int(target)))
    return fst, symbols


def write_best(name: str, fst: pynini.Fst, symbols: pynini.SymbolTable) -> None:
    """OpenFst's best word sequences, and their scores."""
    best = pynini.shortestpath(pynini.rmepsilon(fst), nshortest=30, unique=True)
    found = sorted((float(w), words) for words, _, w in best.paths(symbols, symbols).items())
    (HERE / name).write_text("".join(f"{-weight:.6f} {words}\n" for weight, words in found))


def weather() -> tuple[pynini.Fst, pynini.SymbolTable]:
    """Words that sound alike, one after the other, and a last one that may be missing."""
    symbols, rng = pynini.SymbolTable(), np.random.default_rng(0)
    symbols.add_symbol("<eps>")
    for word in WORDS[3:]:
        symbols.add_symbol(word)

    def word(name: str, weight: float) -> pynini.Fst:
        return pynini.accep(name, weight=round(float(weight), 3), token_type=symbols)

    sets = [pynini.union(*(word(name, rng.exponential()) for name in row.split())) for row in SETS]
    today = word("today", 0.75)
    either = pynini.union(pynini.concat(sets[4], sets[5]), today)
    fst = pynini.concat(pynini.concat(pynini.concat(sets[0], sets[1]), pynini.concat(sets[2], sets[3])), either)
    fst = pynini.determinize(pynini.rmepsilon(pynini.concat(fst, pynini.union(today, pynini.accep("", weight=0.25)))))
    fst.set_input_symbols(symbols).set_output_symbols(symbols)
    (HERE / "weather.fst").write_text(fst.print(acceptor=True))
    return fst, symbols


def trigrams(symbols: pynini.SymbolTable) -> pynini.Fst:
    """An acceptor whose states are two words, with the scores of an Elman network restarted two words before."""
    rng, n, d, k = np.random.default_rng(0), len(WORDS), 3, 4
    shapes = ((n, d), (k, k), (k, d), (k,), (n, k), (n,))
    E, W, V, b, U, c = (rng.uniform(-2.0, 2.0, shape) for shape in shapes)
    fst = pynini.Fst()
    states = {(0,): fst.add_state()}
    for pair in itertools.product(range(n), range(3, n)):
        states[pair] = fst.add_state()
    fst.set_start(0)
    for history, state in states.items():
        h = np.zeros(k)
        for word in history:
            h = np.tanh(W @ h + V @ E[word] + b)
        P = np.exp(U @ h + c)
        cost = -np.log(P / P.sum())
        fst.set_final(state, cost[1])
        for word in range(3, n):
            label = symbols.find(WORDS[word])
            fst.add_arc(state, pynini.Arc(label, label, cost[word], states[(*history, word)[-2:]]))
    return fst.set_input_symbols(symbols).set_output_symbols(symbols)


if __name__ == "__main__":
    recognized(sys.argv[1])
    write_best("goforward.best", *of_slf((HERE / "goforward.slf").read_text()))
    lattice, table = weather()
    write_best("weather.best", lattice, table)
    write_best("weather.best2", pynini.compose(lattice, trigrams(table).arcsort()), table)
