"""What an index page shows: the README with links that hold there, and the repository's address.

The address comes from the variable REPOSITORY_URL, which the workflows set. Without it links to files of the repository
are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FILE_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)([^)\s]+)\)")


class IndexPage(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write both for the address, if it is known."""
        address, text = os.environ.get("REPOSITORY_URL"), Path(self.root, "README.md").read_text(encoding="utf-8")
        link = r"\1" if address is None else rf"[\1]({address}/blob/main/\2)"
        metadata["readme"] = {"content-type": "text/markdown", "text": FILE_LINK.sub(link, text)}
        changes = "blob/main/CHANGELOG.md"
        metadata["urls"] = {} if address is None else {"Source": address, "Changelog": f"{address}/{changes}"}
