# SPDX-License-Identifier: Apache-2.0
"""Make this Python refuse hash algorithms as on a host in FIPS mode, whatever they are used for.

Python imports this module at its start if the directory is in PYTHONPATH.
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Any

REFUSED = ("blake2b", "blake2s", "md5", "md5-sha1", "ripemd160", "sm3")

_new: Callable[..., Any] = hashlib.new


def _refuse(*_: object, **__: object) -> Any:
    # This is the message of OpenSSL 3. hashlib raises a subclass of ValueError.
    raise ValueError("[digital envelope routines] unsupported")


def _new_unless_refused(name: str, *arguments: Any, **options: Any) -> Any:
    return _refuse() if name.lower() in REFUSED else _new(name, *arguments, **options)


setattr(hashlib, "new", _new_unless_refused)  # noqa: B010 - mypy knows the names of hashlib
for name in REFUSED:
    if hasattr(hashlib, name):
        setattr(hashlib, name, _refuse)
    for module, function in (("_blake2", name), ("_md5", name), ("_hashlib", f"openssl_{name}")):
        if hasattr(sys.modules.get(module), function):
            setattr(sys.modules[module], function, _refuse)
