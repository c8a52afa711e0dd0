"""Processes: an executor whose workers may die, each for itself: only the call that it was at is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

GRACE = 5.0  # seconds in which a process ends that has closed its pipe
GOODBYE = b""  # the last message


class StartError(RuntimeError):
    """A process ended before its first call."""


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process that answers calls, one at a time, until it is dismissed or the other end of its pipe is closed."""

    process: Any
    connection: Connection

    def await_start(self) -> None:
        """Wait until the process is ready."""
        try:
            self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise StartError(
                f"a worker process could not start (exit code {self._exit_code()}; it says on stderr why). It "
                'imports the main module again: what that does must stand behind `if __name__ == "__main__":`'
            ) from error

    def call(self, message: bytes) -> Any:
        """What a pickled call returns. The process's death is a BrokenExecutor."""
        try:
            self.connection.send_bytes(message)
            answer = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise BrokenExecutor(f"a worker process ended with exit code {self._exit_code()}") from error
        is_value, outcome = pickle.loads(answer)
        if not is_value:
            raise outcome
        return outcome

    def dismiss(self) -> None:
        """Let the process end. It is told so: a process that was forked later keeps the pipe open."""
        with contextlib.suppress(OSError):  # it has died
            self.connection.send_bytes(GOODBYE)
        self.connection.close()

    def _exit_code(self) -> int:
        """How a process ended that has closed its pipe."""
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()
        return self.process.exitcode


class Processes(Executor):
    """Processes that are started when they are first needed, and again where one has died.

    `concurrent.futures.ProcessPoolExecutor` fails as a whole when one of its processes dies, and does not tell which
    call killed it. Here each process has a thread that talks to it: its death fails the call that it was at, with a
    BrokenExecutor, and the next one goes to a new process.

    Parameters
    ----------
    count : int
        Processes at most.
    context : multiprocessing context, optional
        How they are started. Default: "spawn", which works on all systems and beside threads. A process that is forked
        while another thread holds a lock, of BLAS for example, may wait for it for ever.
    initializer : callable, optional
        Called in each process before its first call, with `initargs`.
    """

    def __init__(
        self,
        count: int,
        context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._context: Any = multiprocessing.get_context("spawn") if context is None else context
        self._first = initializer, initargs
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="implicitsolve")
        self._own = threading.local()  # each thread's worker
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._is_ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in one of the processes."""
        return self._threads.submit(self._call, pickle.dumps((fn, args, kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let what was submitted come to its end, and end the processes."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        if wait:
            workers = self._ended()
            for worker in workers:
                worker.dismiss()
            for worker in workers:
                worker.process.join()

    def kill(self) -> None:
        """End the processes now, whatever they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        workers = self._ended()
        for worker in workers:
            worker.process.kill()
        self._threads.shutdown(wait=True)  # they see that their processes are gone
        for worker in workers:
            worker.process.join()

    def _call(self, message: bytes) -> Any:
        """Runs in a thread."""
        worker = self._worker()
        try:
            return worker.call(message)
        except BrokenExecutor:
            self._own.worker = None
            with self._lock:
                self._workers.remove(worker)
            raise

    def _worker(self) -> _Worker:
        """The thread's worker, a new one where it has none."""
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            with self._lock:
                if self._is_ended:
                    raise BrokenExecutor("the processes have been ended")
                worker = self._started()
                self._workers.append(worker)
            worker.await_start()
            self._own.worker = worker
        return worker

    def _started(self) -> _Worker:
        here, there = self._context.Pipe()
        inherited = here if self._context.get_start_method() == "fork" else None
        process = self._context.Process(target=_serve, args=(there, inherited, *self._first), daemon=True)
        try:
            process.start()
        except (RuntimeError, OSError, AssertionError) as error:  # the last where a worker wants workers
            raise StartError(f"a worker process could not start: {error}") from error
        there.close()  # so that the process's death closes the pipe
        return _Worker(process, here)

    def _ended(self) -> list[_Worker]:
        """The workers, after which no other one starts."""
        with self._lock:
            self._is_ended = True
            return list(self._workers)


def _serve(
    connection: Connection,
    inherited: Connection | None,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
) -> None:
    """Answer calls until there are no more: what a worker process runs; `inherited` is the caller's end of the pipe."""
    if inherited is not None:
        inherited.close()  # so that the caller's death closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    if initializer is not None:
        initializer(*initargs)
    connection.send_bytes(b"ready")
    with contextlib.suppress(EOFError, OSError):
        while message := connection.recv_bytes():
            connection.send_bytes(_answer(message))


def _answer(message: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((True, function(*args, **kwargs)))
    except Exception as error:  # noqa: BLE001 (whatever it is, the caller gets it)
        return pickle.dumps((False, error))
