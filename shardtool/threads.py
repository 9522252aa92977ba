"""Stop the threads of a generator, even if the garbage collector closes the generator.

Python may clear module variables at interpreter exit. Default values of arguments such as `_get_ident` therefore keep
the needed objects.
"""

from __future__ import annotations

import gc
import sys
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Any

_collecting: set[int] = set()  # the threads in which the garbage collector runs


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    try:  # noqa: SIM105 - `suppress` needs further calls, and a collection can start close to the recursion limit
        (_collecting.add if phase == "start" else _collecting.discard)(get_ident())
    except RecursionError:
        pass


gc.callbacks.append(_note_collection)


def may_wait(
    *,
    _is_finalizing: Callable[[], bool] = sys.is_finalizing,
    _get_ident: Callable[[], int] = get_ident,
    _collecting: set[int] = _collecting,
) -> bool:
    """Return whether the current thread may wait for other threads.

    The garbage collector closes abandoned generators, and can interrupt code that holds locks of `threading`. Waiting
    for these locks could block forever. At interpreter exit, all threads have already stopped.
    """
    return not _is_finalizing() and _get_ident() not in _collecting


def stop_threads(
    pool: ThreadPoolExecutor, futures: Iterable[Future[Any]], *, _may_wait: Callable[[], bool] = may_wait
) -> None:
    """Cancel the futures. Wait for the threads if `may_wait` allows it. Otherwise, they stop when `pool` is deleted."""
    for future in futures:
        future.cancel()
    if _may_wait():
        pool.shutdown(cancel_futures=True)
