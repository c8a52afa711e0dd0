"""Word lattices: files of PocketSphinx and OpenFst beside OpenFst's own n-best sequences, and a language model."""

import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _lattices.files import read_kaldi, read_openfst, read_slf
from _lattices.language_model import ElmanLanguageModel
from _lattices.lattice import Arc, Lattice, edit_distance
from implicitsolve.adapters import approximate_fixed_point, elman

FILES = Path(__file__).parent / "files"  # make.py there says how they were made
TEXT = "the a weather whether is was find fine vine to too two day die today"
WORDS = ["<s>", "</s>", "<unk>", *TEXT.split(" ")]


def expected(name):
    """Word sequences and scores of OpenFst."""
    rows = [line.split() for line in (FILES / name).read_text().splitlines()]
    return [(tuple(words), float(score)) for score, *words in rows]


def assert_same(found, expected):
    """The same sequences with the same scores; those of equal scores may be in another order."""
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-3, rtol=0)
    last = expected[-1][1]
    assert {words for words, score in found if score > last + 1e-2} <= {words for words, _ in expected}


def model(k=4, scale=2.0, words=WORDS, **settings):
    rng = np.random.default_rng(0)
    return ElmanLanguageModel(ElmanLanguageModel.parameters(len(words), 3, k, scale=scale, rng=rng), words, **settings)


@st.composite
def lattices(draw):
    """Small ones with words, silence and parallel arcs, which all lead from 0 to the last node."""
    last = draw(st.integers(1, 5))
    score = st.integers(-20, 20).map(lambda i: i / 4)
    more = st.tuples(st.integers(0, last - 1), st.integers(1, last), st.sampled_from(["", "a", "the", "is"]), score)
    arcs = [Arc(s, s + 1, draw(st.sampled_from(["", "a", "day"])), draw(score)) for s in range(last)]
    arcs += [Arc(s, t, word, a) for s, t, word, a in draw(st.lists(more, max_size=7)) if s < t]
    return Lattice(draw(st.permutations(arcs)), 0, last, acoustic_scale=0.5, word_penalty=-0.25)


def paths(lattice, node):
    """All of them, as arcs."""
    if node == lattice.end:
        yield ()
    for arc in lattice.arcs:
        if arc.source == node:
            yield from ((arc, *rest) for rest in paths(lattice, arc.target))


def by_enumeration(lattice):
    best = {}
    for path in paths(lattice, lattice.start):
        words = tuple(arc.word for arc in path if arc.word)
        best[words] = max(best.get(words, -np.inf), sum(map(lattice.score, path)))
    return sorted(best.items(), key=lambda item: -item[1])


def test_a_lattice_of_pocketsphinx_has_the_best_sequences_of_openfst():
    lattice = read_slf(FILES / "goforward.slf")
    assert len(lattice.arcs) == 397
    assert_same(lattice.n_best(30), expected("goforward.best"))
    assert lattice.n_best()[0].words == ("go", "forward", "ten", "meters")


def test_a_lattice_of_openfst_has_its_best_sequences(tmp_path):
    lattice = read_openfst(FILES / "weather.fst")
    assert_same(lattice.n_best(30), expected("weather.best"))
    lines = (FILES / "weather.fst").read_text().split("\n")
    numbers = {word: i + 3 for i, word in enumerate(WORDS[3:])}
    changed = [
        " ".join([*fields[:2], "0", str(numbers[fields[2]]), *fields[3:]]) if len(fields := line.split()) > 2 else line
        for line in lines
    ]
    (tmp_path / "words").write_text("<eps> 0\n" + "".join(f"{word} {i}\n" for word, i in numbers.items()))
    with gzip.open(tmp_path / "lattice.gz", "wt") as file:
        file.write("\n".join(changed))
    again = read_openfst(tmp_path / "lattice.gz", symbols=tmp_path / "words", acceptor=False)
    assert again == lattice


def test_rescoring_equals_composition_with_a_trigram_model_in_openfst():
    (rescored,) = model().rescore([read_openfst(FILES / "weather.fst")], rho=2)
    assert_same(rescored.n_best(30), expected("weather.best2"))


SLF = """# comment
VERSION=1.0
UTTERANCE=x lmname=bigram lmscale=2.0 wdpenalty=-1.0 acscale=0.5 base=10
NODES=4 LINKS=4
I=0 t=0.0
I=1 t=0.5
I=2 t=0.6
I=3 t=0.9
J=0 START=0 END=1 WORD=a acoustic=-2.0 language=-1.0
J=1 S=0 E=1 W="the" a=-3.0 l=-0.5
J=2 S=1 E=3 W=cat v=1 a=-4.0 l=-1.0
J=3 S=1 E=2 W=!NULL a=-1.0
"""


def test_words_on_links_scales_and_bases(tmp_path):
    (tmp_path / "slf").write_text(SLF.replace("J=3 S=1 E=2", "J=3 S=2 E=3").replace("J=2 S=1 E=3", "J=2 S=1 E=2"))
    found = read_slf(tmp_path / "slf").n_best(5)
    assert [words for words, _ in found] == [("the", "cat"), ("a", "cat")]
    ten = np.log(10)
    assert found[0].score == pytest.approx(ten * (0.5 * (-3 - 4 - 1) + 2.0 * (-0.5 - 1.0)) - 2.0)
    (tmp_path / "nodes").write_text("N=2 L=1 base=0\nI=0 W=go\nI=1 W=home\nJ=0 S=0 E=1 a=0.5\n")
    assert read_slf(tmp_path / "nodes").n_best() == [(("go", "home"), np.log(0.5))]


KALDI = """utt1
0 1 go 1.5,-20.25,3_4_4
0 1 no 2.5,-20.5,3_5
1 2 home 0.5,-7,6
2 0.25,1.0,7

7
0 1 5 1.5,-20
0 2 6 0,-1
1
2 3.5,
"""


def test_an_archive_of_kaldi(tmp_path):
    (tmp_path / "lattices").write_text(KALDI)
    (name, first), (other, second) = read_kaldi(tmp_path / "lattices")
    assert (name, other) == ("utt1", "7")
    assert first.n_best(2) == [(("go", "home"), 24.0), (("no", "home"), 23.25)]
    assert dict(second.n_best(2)) == {("5",): 18.5, ("6",): -2.5}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0 1 go there now 1,2,", "states and arcs"),
        ("0 b go 1,2,", "states and arcs"),
        ("0 1 go 1,2,", "final states"),
        ("0 1 go x,2,\n1", "float"),
    ],
)
def test_a_wrong_archive_of_kaldi_raises(lines, message, tmp_path):
    (tmp_path / "wrong").write_text(f"utt1\n{lines}\n")
    with pytest.raises(ValueError, match=message):
        list(read_kaldi(tmp_path / "wrong"))


@settings(max_examples=60)
@given(lattices())
def test_posteriors_and_risks_are_those_of_all_paths(lattice):
    every = list(paths(lattice, lattice.start))
    weights = np.exp([sum(map(lattice.score, path)) for path in every])
    shares = [sum(w for w, path in zip(weights, every) if arc in path) for arc in dict.fromkeys(lattice.arcs)]
    posteriors = dict.fromkeys(lattice.arcs, 0.0)
    for arc, posterior in zip(lattice.arcs, lattice.posteriors()):
        posteriors[arc] += posterior
    if len(posteriors) == len(lattice.arcs):
        np.testing.assert_allclose(list(posteriors.values()), np.array(shares) / weights.sum(), rtol=1e-9, atol=1e-12)
    best = by_enumeration(lattice)
    total = sum(np.exp(score) for _, score in best)
    risks = {a: sum(np.exp(score) / total * edit_distance(a, b) for b, score in best) for a, _ in best}
    words, risk = lattice.minimum_bayes_risk(len(best))
    assert risk == pytest.approx(min(risks.values()), abs=1e-9) == pytest.approx(risks[words], abs=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "ab", 2), ("abc", "abc", 0), ("abc", "xbcd", 2), ("abcd", "bcd", 1)]
)
def test_edit_distances(a, b, distance):
    assert edit_distance(a, b) == edit_distance(b, a) == distance


@settings(max_examples=60)
@given(lattices())
def test_best_sequences_are_those_of_all_paths(lattice):
    every = by_enumeration(lattice)
    found = lattice.n_best(len(every) + 1)
    assert dict(found) == pytest.approx(dict(every), abs=1e-12)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    beam = every[0][1] - every[-1][1] if len(every) < 3 else every[0][1] - every[1][1]
    kept = lattice.pruned(beam).n_best(len(every))
    assert set(kept) >= {item for item in found if item.score >= found[0].score - beam}


@settings(max_examples=40)
@given(lattices(), st.integers(1, 3))
def test_rescored_paths_have_the_scores_of_the_network_restarted(lattice, rho):
    network = model(k=2)
    expanded, histories = lattice.expanded(rho)
    assert dict(expanded.n_best(99)) == pytest.approx(dict(lattice.n_best(99)), abs=1e-12)
    for arc in expanded.arcs[: len(expanded.arcs) - 1]:
        if arc.word:
            assert histories[arc.target] == (*histories[arc.source], arc.word)[-rho:]
    rescored, same = network.rescore([lattice, lattice], rho)
    assert same == rescored
    for path in paths(rescored, rescored.start):
        words = [arc.word for arc in path if arc.word]
        expected = -np.log(network.perplexity([words], rho=rho)) * (len(words) + 1)
        assert sum(arc.language for arc in path) == pytest.approx(expected)


@pytest.mark.parametrize("rho", [None, 1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_perplexity_is_that_of_the_sentences_one_by_one(rho, dtype):
    params = {name: value.astype(dtype) for name, value in model().params.items()}
    network = ElmanLanguageModel(params, WORDS)
    sentences = [["the", "weather", "is", "fine"], [], ["a", "xylophone"]]
    total = 0.0
    for words in sentences:
        ids = network.numbers(["<s>", *words, "</s>"])
        problem = elman({name: params[name] for name in "WVb"}, params["E"][ids[:-1]])
        H = problem.substitute() if rho is None else approximate_fixed_point(problem, rho).x
        logits = (H @ params["U"].T + params["c"]).astype(float)
        total += (logits[range(len(H)), ids[1:]] - np.log(np.exp(logits).sum(axis=1))).sum()
    expected = np.exp(-total / sum(len(words) + 1 for words in sentences))
    assert network.perplexity(sentences, rho=rho) == pytest.approx(expected, rel=1e-12 if dtype is np.float64 else 1e-5)
    loss, _ = network.loss(sentences, rho=rho)
    assert loss == pytest.approx(-total / 3, rel=1e-5)


@pytest.mark.parametrize("rho", [None, 2])
def test_gradients_of_the_loss(rho, rng):
    network = model(activation="logistic")
    sentences = [["the", "the", "day"], ["a", "whether", "is", "too", "fine"]]
    _, gradients = network.loss(sentences, rho=rho)
    assert set(gradients) == set(network.params)
    step = {name: 1e-6 * rng.standard_normal(value.shape) for name, value in network.params.items()}

    def value(sign):
        params = {name: value + sign * step[name] for name, value in network.params.items()}
        return replace(network, params=params).loss(sentences, rho=rho)[0]

    slope = sum((gradients[name] * step[name]).sum() for name in step)
    assert (value(1) - value(-1)) / 2 == pytest.approx(slope, rel=1e-6)
    if rho:
        skipped = network.loss(sentences, rho=rho, propagation="skipped")[1]
        np.testing.assert_array_equal(skipped["U"], gradients["U"])
        assert abs(skipped["V"] - gradients["V"]).max() > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Lattice([Arc(0, 1, "a"), Arc(1, 2, "b"), Arc(2, 1, "c")], 0, 2), "must have no cycle"),
        (lambda: Lattice([Arc(0, 1, "a")], 1, 0), "got no path"),
        (lambda: Lattice([], 0, 0), "to `end` 0, got no path"),
        (lambda: Lattice([Arc(0, 1, "a", np.nan)], 0, 1), "finite scores"),
        (lambda: Lattice([Arc(0, 1, "a")], 0, 1).n_best(0), "`n` must be at least 1"),
        (lambda: Lattice([Arc(0, 1, "a")], 0, 1).expanded(0), "`rho` must be at least 1"),
        (lambda: Lattice([Arc(0, 1, "a")], 0, 1).pruned(-1.0), "`beam` must not be negative"),
        (lambda: read_openfst(FILES / "weather.fst", acceptor=False), "lines of a transducer"),
        (lambda: read_openfst(FILES / "goforward.slf"), "lines of an acceptor"),
        (lambda: read_slf(FILES / "weather.fst"), "complete and without sublattices"),
        (lambda: model(words=[*WORDS[:-1], "the"]), "must have different words"),
        (lambda: model(begin="!SENT_START"), "must have the word '!SENT_START'"),
        (lambda: ElmanLanguageModel({**model().params, "U": np.ones((2, 4))}, WORDS), r"`U` must have shape \(18, 4\)"),
        (lambda: model().perplexity([]), "sequences of words, at least one"),
        (lambda: model().perplexity(["the", "day"]), "`sentences` must be sequences of words"),
    ],
)
def test_wrong_arguments_and_files_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_incomplete_files_raise(tmp_path):
    for wrong in (SLF.replace("LINKS=4", "LINKS=5"), SLF):
        (tmp_path / "slf").write_text(wrong)
        with pytest.raises(ValueError, match=r"complete|candidates"):
            read_slf(tmp_path / "slf")
    assert not list(itertools.chain(model().rescore([], 2)))
