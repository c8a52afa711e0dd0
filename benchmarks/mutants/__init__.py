"""Mutation testing of the core: change the package in one place at a time, and see whether a test fails.

A random sample of all mutants (one seed, one sample) is drawn from each file in proportion to how many it has. A mutant
runs in a process of its own, and only against tests that execute the changed lines: those of the file's mirror first,
then the others, the quickest first, until one fails or until they have taken `--budget` seconds. What a later test
would have caught counts as survived. A test that kills is run again without the mutant: where it fails as well, the
mutant is "doubtful" and does not count as killed. What only error messages are made of is left out; `--messages` takes
nothing else.

Usage::

    export HYPOTHESIS_PROFILE=mutants OMP_NUM_THREADS=1
    python -m benchmarks.mutants map                                  # which test executes which line; 20 minutes
    python -m benchmarks.mutants run --sample 700 --seed 1 --report build/mutants/report.json
    python -m benchmarks.mutants run --files implicitsolve/nonlinear/_loop.py --sample 100
    python -m benchmarks.mutants map tests/nonlinear/test_loop.py        # once more, for tests that are new
"""
