# SPDX-License-Identifier: Apache-2.0
"""What a page tells its readers to write into files: the checks use it as it stands there."""

import re
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each block of code that has a name."""
    for match in _BLOCK.finditer(page.read_text()):
        yield match[1], match[2]
