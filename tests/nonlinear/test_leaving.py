"""Systems of a batch end one after the other; each gets what it would have got alone."""

import numpy as np

import implicitsolve as ims


def systems(size, seen=None):
    """x = size A x + tanh terms: the larger the size, the longer it takes. With `seen`, how many are evaluated."""
    A = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]

    def problem(size):
        def residual(x):
            if seen is not None:
                seen.append(len(x))
            return x - size[:, None] * np.tanh(x @ A.T) - 1

        def linearize(x):
            slope = size[:, None] * (1 - np.tanh(x @ A.T) ** 2)

            def build(slope):
                return ims.LinearOperator(
                    lambda v: v - slope * (v @ A.T),
                    lambda w: w - (slope * w) @ A,
                    in_shape=6,
                    batch_shape=(len(slope),),
                    take=lambda indices: build(slope[indices]),
                )

            return residual(x), build(slope)

        return ims.Problem(
            residual,
            linearize=linearize,
            batch_ndim=1,
            fixed_point=True,
            pure=True,  # so that what `take` returns is not evaluated once more
            take=lambda indices: problem(size[indices]),
        )

    return problem(size)


def test_few_more_systems_are_evaluated_than_run():
    seen = []
    size = np.linspace(0.0, 0.9, 16)
    result = ims.root(systems(size, seen), np.zeros((16, 6)), method="anderson", stop=ims.NonlinearStop(rtol=1e-12))
    assert result.success.all()
    running = np.asarray([16] + [step.running for step in result.steps[:-1]])
    assert len(seen) == len(running)
    assert (np.asarray(seen) >= running).all()
    assert (np.asarray(seen) * 0.75 <= np.maximum(running, 1)).all()
