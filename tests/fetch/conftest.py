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
    """Yield a web server that only this test uses."""
    with web_server() as server:
        yield server


@contextmanager
def fetching(**options: Any) -> Iterator[HttpFetcher]:
    """Yield a fetcher that can download from this machine, and does not retry by default."""
    chosen = {"allow_private": True, "retries": 0, "per_host": 64, **options}
    with closing(HttpFetcher(FetchOptions(**chosen))) as fetcher:
        yield fetcher


def held(fetcher: HttpFetcher) -> int:
    """Return the bytes of downloads that the caller has not received yet, after all scheduled event loop calls."""

    async def read_held() -> int:
        return fetcher._limits.held  # noqa: SLF001 - only tests need this

    return asyncio.run_coroutine_threadsafe(read_held(), fetcher._loop).result()  # noqa: SLF001 - only the event loop changes `held`
