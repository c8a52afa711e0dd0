r"""
Train an implicit tagger on real data
=====================================

You will see a whole application: a part-of-speech tagger whose middle is an implicit layer, trained on an English
treebank in NumPy alone, with gradients through the solution. Reading takes fifteen minutes, running half a minute.

It is a small model on a small part of the data, so that it can be trained while this page is built. The full one,
``examples/pos_tagging.py``, uses the same modules, and its page says how far it gets.

The data are the first thousand training sentences, and the first five hundred development sentences, of Universal
Dependencies English EWT. They are read from the folder that the environment variable ``IMPLICITSOLVE_DATA`` names;
without it they are downloaded once, for which ``pooch`` must be installed. The script runs in a clone of the
repository.
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import implicitsolve as ims

here = Path(
    globals().get("__file__", "plot_6_train_a_tagger.py")
)  # a notebook has no __file__: use the working directory
sys.path.insert(0, str(here.resolve().parents[1]))  # the folder examples

from _tagging.batches import collate
from _tagging.conllu import read_conllu
from _tagging.features import Encoder
from _tagging.files import find_treebank
from _tagging.model import Sizes, SolverOptions, Tagger
from _tagging.training import TrainingOptions, evaluate, train

# %%
# The data
# --------
# A sentence is a list of words with a tag each. There are 17 universal tags: NOUN, VERB, ADJ and so on.

train_path, dev_path = find_treebank()
whole_corpus, dev = read_conllu(train_path, "upos"), read_conllu(dev_path, "upos")[:500]
corpus = whole_corpus[:1000]
example = next(sentence for sentence in dev if 8 <= len(sentence.forms) <= 12 and not {"X", "PROPN"} & {*sentence.tags})
print(" ".join(f"{form}/{tag}" for form, tag in zip(example.forms, example.tags, strict=True)))
for name, sentences in {"training": corpus, "development": dev}.items():
    print(f"{name}: {len(sentences)} sentences, {sum(len(sentence.forms) for sentence in sentences)} words")
print(f"the whole training part has {len(whole_corpus)} sentences")

# %%
# What is the baseline? The simplest tagger gives each word its most frequent tag in the training part, and NOUN to
# unknown words.

seen = defaultdict(Counter)
for sentence in corpus:
    for form, tag in zip(sentence.forms, sentence.tags, strict=True):
        seen[form.lower()][tag] += 1
known = {form: tags.most_common(1)[0][0] for form, tags in seen.items()}
truth = [tag for sentence in dev for tag in sentence.tags]
guesses = [known.get(form.lower(), "NOUN") for sentence in dev for form in sentence.forms]
baseline = np.mean(np.array(guesses) == np.array(truth))
unknown = np.mean([form.lower() not in known for sentence in dev for form in sentence.forms])
print(f"most frequent tag: {baseline:.3f} of the development words; {unknown:.3f} of them were not seen in training")

# %%
# The model
# ---------
# Each word becomes a vector of numbers: an embedding of the word, of its first and last two, three and four letters,
# and eight flags such as capitals and digits. An implicit GRU reads them
# (:func:`implicitsolve.adapters.implicit_gru`): the state of a word depends on the states of both its neighbours, so
# that the states of a sentence are the solution of one nonlinear system. A softmax of the state gives the tag.

encoder = Encoder.from_sentences(corpus)
encoded, encoded_dev = ([encoder.encode(s.forms, s.tags) for s in sentences] for sentences in (corpus, dev))
tagger = Tagger.initial(encoder, Sizes(state=32), np.random.default_rng(0))
print(f"{tagger.sizes.input} inputs, {tagger.sizes.state} states, {len(encoder.tags)} tags")
print(f"{sum(value.size for value in tagger.parameters.values())} parameters, most of them in the embeddings")

# %%
# The two lines of the model that use this library are ``ims.root(problem)``, for the states of a batch of sentences
# of different lengths, and ``ims.pull_back(problem, result, cotangent)``, for the gradients with respect to all
# parameters and inputs. They are in ``examples/_tagging/model.py``, with the problem. Here is one batch, in the
# untrained model:

solver = SolverOptions()
batch = collate(encoded, np.arange(20))
forward = tagger.forward(batch, solver)
print(f"sentences of {batch.lengths.min()} to {batch.lengths.max()} words, states {forward.result.x.shape}")
print(forward.result.summary())

# %%
# The tolerance, 1e-3, is far below the noise of a random batch, and the adjoint systems are solved to 1e-2. Each
# sentence has its own status. One whose system was not solved would be left out of the gradient, and counted.
#
# Training
# --------
# Adam, with batches of about 200 words, and six passes over the thousand sentences.

accuracies, steps, unsolved = [], [], 0
for report in train(tagger, encoded, encoded_dev, TrainingOptions(epochs=6, batch_words=200), solver):
    work = report.train.work
    accuracies.append((report.train.accuracy, report.dev.score.accuracy))
    steps.append((work.steps / work.batches, work.adjoint_products / work.batches))
    unsolved += work.unsolved + work.unsolved_adjoint
    print(f"epoch {report.epoch}: development accuracy {report.dev.score.accuracy:.3f}")
print(f"{unsolved} solves failed")

# %%
# The curve, and the work: steps of the solver for the slowest sentence of a batch, and products for its adjoint.
# Training makes the layer somewhat harder to solve; :func:`implicitsolve.derivatives.jacobian_penalty` could be added
# to the loss to limit that.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
epochs = np.arange(1, len(accuracies) + 1)
left.plot(epochs, [a for a, _ in accuracies], "C7o--", label="training, while it learns")
left.plot(epochs, [a for _, a in accuracies], "C0o-", label="development")
left.axhline(baseline, color="k", linestyle=":", label="most frequent tag")
left.set(xlabel="epoch", ylabel="accuracy")
left.legend()
right.plot(epochs, [n for n, _ in steps], "C0o-", label="steps of the forward solve")
right.plot(epochs, [n for _, n in steps], "C1s-", label="products of the adjoint solve")
right.set(xlabel="epoch", ylabel="mean of the batches", ylim=(0, 6))
right.legend()
plt.show()

# %%
# What it has learned
# -------------------
# On unknown words the tagger relies on their letters and on the words around them. The table of most
# frequent tags can only guess there.

evaluation = evaluate(tagger, encoded_dev, solver)
predicted = [tag for tags in evaluation.tags for tag in tags]
is_unknown = np.array([form.lower() not in known for sentence in dev for form in sentence.forms])
for name, where in {"seen in training": ~is_unknown, "not seen": is_unknown}.items():
    right_now, right_then = (np.mean(np.array(tags)[where] == np.array(truth)[where]) for tags in (predicted, guesses))
    print(f"words {name}: tagger {right_now:.3f}, most frequent tag {right_then:.3f}")

# %%
# A new sentence, which misleads human readers too ("man" is its verb), with its solve:

forms = ["The", "old", "man", "the", "boats", "while", "the", "sailors", "sleep", "."]
result = tagger.forward(collate([encoder.encode(forms)], np.arange(1)), solver).result
tags = evaluate(tagger, [encoder.encode(forms)], solver).tags[0]
print(" ".join(f"{form}/{tag}" for form, tag in zip(forms, tags, strict=True)))
print(f"{ims.Status(result.status[0]).name} after {result.iterations[0]} steps")

# %%
# A thousand sentences and 32 states are few: these numbers show that the method learns, not how well it can do. For
# that see :doc:`/examples/pos_tagging`, with all sentences and 96 states. What does not change with the size is the
# code: a layer, ``root``, ``pull_back``.
#
# What next
# ---------
# - :doc:`/examples/pos_tagging`: the full tagger, its learning curve and its error.
# - :doc:`/explanation/layers`: the layers, their parameters, and sequences of different lengths.
# - :doc:`/how_to/torch`: the same layers as modules of PyTorch.
# - :doc:`/explanation/fixed_points`: the methods that solve them.
