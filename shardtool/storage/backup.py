"""Hard links to the files of a dataset, so that a failed repair can restore them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import OutputFailed, os_error_text
from shardtool.storage.lookup import list_folder

if TYPE_CHECKING:
    from collections.abc import Iterable


class BackupLinks(NamedTuple):
    """Files of a folder that have a second name in a new folder below it.

    Attributes:
        folder: Where the files are.
        below: The new folder.
    """

    folder: str
    below: str

    def keep(self, names: Iterable[str]) -> None:
        """Give those of the files that are there a second name.

        Raises:
            OutputFailed: The folder is there already, or the file system refuses.
        """
        made = False
        try:
            os.mkdir(self.below)
            made = True
            for name in names:
                path = os.path.join(self.folder, name)
                if os.path.lexists(path):
                    os.link(path, os.path.join(self.below, name), follow_symlinks=False)
        except OSError as error:
            if made:
                self.discard()
            remedy = "" if made else "A repair was cut off? Look at it, move its files back, and remove the folder."
            raise OutputFailed(
                self.below, f"cannot keep what is there: {os_error_text(error)}", remedy=remedy
            ) from None

    def restore_files(self, last: str) -> None:
        """Give the files their first names again; those that end in `last` come last."""
        for name in sorted(list_folder(self.below), key=lambda name: name.endswith(last)):
            os.replace(os.path.join(self.below, name), os.path.join(self.folder, name))
        self.discard()

    def discard(self) -> None:
        """Remove the second names."""
        import shutil  # bz2, lzma: for no run but a repair

        shutil.rmtree(self.below, ignore_errors=True)
