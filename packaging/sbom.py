# SPDX-License-Identifier: Apache-2.0
"""Print a CycloneDX document with what its tool does not know: the version of a wheel, and the libraries inside.

packaging/sbom.py ENVIRONMENT.json WHEEL
"""

import json
import re
import sys
import zipfile
from pathlib import Path

_EXTENSION = "ioutil_ext/_ioutil.abi3.so"
#: What is linked into it: the text that has the version, the licence, and how vulnerability databases name it.
_LIBRARIES = {
    "openssl": (re.compile(rb"OpenSSL (3\.\d+\.\d+) \d+ \w+ \d{4}\0"), "Apache-2.0", "openssl:openssl"),
    "zlib": (re.compile(rb" inflate (1\.\d+[.\d]*) Copyright"), "Zlib", "zlib:zlib"),
    "zstd": (re.compile(rb"zstd (1\.\d+\.\d+)\0"), "BSD-3-Clause", "facebook:zstandard"),
}


def main() -> None:
    environment, wheel = (Path(name) for name in sys.argv[1:])
    document = json.loads(environment.read_text())
    with zipfile.ZipFile(wheel) as archive:
        extension = archive.read(_EXTENSION)
    document["metadata"]["component"]["version"] = wheel.name.split("-")[1]
    for name, (text, licence, cpe) in _LIBRARIES.items():
        found = text.search(extension)
        if found is None:
            sys.exit(f"sbom: {wheel}: {_EXTENSION} has no {name}")
        document["components"].append(_component(name, found[1].decode(), licence, cpe))
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    print()


def _component(name: str, version: str, licence: str, cpe: str) -> dict[str, object]:
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version,
        "description": f"linked into {_EXTENSION} of the wheel; .deb and .rpm use the system's",
        "licenses": [{"license": {"id": licence}}],
        "purl": f"pkg:generic/{name}@{version}",
        "cpe": f"cpe:2.3:a:{cpe}:{version}:*:*:*:*:*:*:*",
    }


if __name__ == "__main__":
    main()
