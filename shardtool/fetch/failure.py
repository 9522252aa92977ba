"""Why a URL gave no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode


class FetchFailed(Exception):
    """A URL that gave no file.

    Attributes:
        code: Why, for programs.
        message: For people; no part of the URL is in it.
        may_pass: Whether another try may give the file.
        wait_s: Seconds that the server asks to wait before that.
    """

    def __init__(self, code: SkipCode, message: str, *, may_pass: bool = False, wait_s: float = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.may_pass, self.wait_s = code, message, may_pass, wait_s
