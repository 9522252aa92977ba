"""Hard links to a dataset's files, to undo a failed repair."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import OutputFailed, os_error_text
from shardtool.storage.lookup import list_folder

if TYPE_CHECKING:
    from collections.abc import Iterable


class BackupLinks(NamedTuple):
    """Hard links, in the new folder `below`, to files of `folder`."""

    folder: str
    below: str

    def keep(self, names: Iterable[str]) -> None:
        """Create the folder and link the files that exist."""
        created = False
        try:
            os.mkdir(self.below)
            created = True
            for name in names:
                path = os.path.join(self.folder, name)
                if os.path.lexists(path):
                    os.link(path, os.path.join(self.below, name), follow_symlinks=False)
        except OSError as error:
            if created:
                self.discard()
            remedy = "" if created else "If a repair was interrupted, move the files in it back and delete the folder."
            found = f"cannot back up the dataset: {os_error_text(error)}"
            raise OutputFailed(self.below, found, remedy=remedy) from None

    def restore_files(self, last: str) -> None:
        """Move all links back; names ending in `last` come last."""
        for name in sorted(list_folder(self.below), key=lambda name: name.endswith(last)):
            os.replace(os.path.join(self.below, name), os.path.join(self.folder, name))
        self.discard()

    def discard(self) -> None:
        """Delete the links and their folder."""
        import shutil  # loads bz2 and lzma

        shutil.rmtree(self.below, ignore_errors=True)
