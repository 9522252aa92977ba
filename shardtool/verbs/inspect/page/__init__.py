"""The page and the contact sheet of `inspect`: a dataset to look at, in one file each."""

from shardtool.verbs.inspect.page.contact_sheet import write_contact_sheet
from shardtool.verbs.inspect.page.page import write_page

__all__ = ["write_contact_sheet", "write_page"]
