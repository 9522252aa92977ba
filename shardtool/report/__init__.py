"""The page and the contact sheet of `inspect`: a dataset to look at, in one file each."""

from shardtool.report.page import write_page
from shardtool.report.sheet import write_contact_sheet

__all__ = ["write_contact_sheet", "write_page"]
