"""`solve_batch` on the workers of Dask and of Ray, one of which is killed on the way."""

import os
import signal
import threading

import numpy as np
import pytest

import implicitsolve as ims
from tests.drivers.executors import numbers
from tests.drivers.worker_problems import Slow

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # those packages' own
]


def kill_soon(process):
    threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()


def test_dask_repeats_what_a_killed_worker_held():
    distributed = pytest.importorskip("distributed")
    c = numbers(80)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        kill_soon(next(iter(client.run(os.getpid).values())))
        result = ims.drivers.solve_batch(
            Slow(c).problem(), np.ones((80, 1)), executor=client.get_executor(), workers=2, chunks=20
        )
    assert result.success.all()
    np.testing.assert_allclose(result.x, np.cbrt(c), rtol=1e-6)


def test_ray_loses_one_chunk_with_a_killed_worker():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")

    class Tasks:
        """Ray's tasks as an executor."""

        def __init__(self, **options):
            self.call = ray.remote(**options)(lambda fn, *args: fn(*args))

        def submit(self, fn, /, *args):
            return self.call.remote(fn, *args).future()

    c, x0, executor = numbers(80), np.ones((80, 1)), Tasks(num_cpus=1, max_retries=0)
    try:
        kill_soon(executor.submit(os.getpid).result())
        first = ims.drivers.solve_batch(Slow(c).problem(), x0, executor=executor, workers=2, chunks=20)
        result = ims.drivers.solve_batch(Slow(c).problem(), x0, executor=executor, previous=first)
    finally:
        ray.shutdown()
    assert [chunk.systems.size for chunk in first.lost] in ([], [4])  # none if that worker was idle
    assert result.success.all()
    np.testing.assert_allclose(result.x, np.cbrt(c), rtol=1e-6)
