"""A web server, and a fetcher that downloads from it."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.fetch.fetcher import HttpFetcher
from shardtool.fetch.options import FetchOptions
from tests.fetch.server import WebServer, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Yield a separate web server for a test."""
    with web_server() as server:
        yield server


@contextmanager
def fetching(**options: Any) -> Iterator[HttpFetcher]:
    """Yield a fetcher that may download from this machine."""
    chosen = {"allow_private": True, "retries": 0, "per_host": 64, **options}
    with closing(HttpFetcher(FetchOptions(**chosen))) as fetcher:
        yield fetcher


def held(fetcher: HttpFetcher) -> int:
    """Return the bytes in memory that are not taken yet. Earlier calls to the event loop are finished first."""

    async def read_held() -> int:
        return fetcher._limits.held  # noqa: SLF001 - only tests need this

    return asyncio.run_coroutine_threadsafe(read_held(), fetcher._loop).result()  # noqa: SLF001 - `held` changes there
