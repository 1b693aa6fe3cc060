# SPDX-License-Identifier: Apache-2.0
"""A block node of qemu as text for the option --image-opts (qemu-nbd(8)).

qemu also takes JSON, but JSON cannot have names that are not UTF-8, and has no way to escape them.
"""

from collections.abc import Mapping


def image_opts(node: Mapping[str, object]) -> str:
    """Return the options of a node and of those below it: `driver=qcow2,file.driver=file,file.filename=…`

    Values are text, numbers, booleans and nodes. Names have surrogates for bytes that are not UTF-8 (PEP 383).
    """
    return ",".join(_options(node, ""))


def _options(node: Mapping[str, object], prefix: str) -> list[str]:
    found: list[str] = []
    for key, value in node.items():
        if isinstance(value, Mapping):
            found += _options(value, f"{prefix}{key}.")
        else:
            text = str(value) if not isinstance(value, bool) else "on" if value else "off"
            found.append(f"{prefix}{key}={text.replace(',', ',,')}")
    return found
