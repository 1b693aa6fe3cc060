# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first used.

The command is often started for a small image, and each module that it imports delays the first request. Use this for
what few transfers need, if it saves 2 ms. For mypy they are ordinary imports:

    if TYPE_CHECKING:
        from .rbd import RbdSource
    else:
        __getattr__ = imported_at_use(__name__, {"RbdSource": ".rbd"})
"""

import importlib
from collections.abc import Callable, Mapping


def imported_at_use(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a __getattr__ for a package (PEP 562). `modules` has the module of each name, relative to the package."""

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    return find
