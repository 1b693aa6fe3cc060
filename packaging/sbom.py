# SPDX-License-Identifier: Apache-2.0
"""Print a CycloneDX document with what its tool does not know: the version of a wheel, and the OpenSSL inside.

packaging/sbom.py ENVIRONMENT.json WHEEL
"""

import json
import re
import sys
import zipfile
from pathlib import Path

_EXTENSION = "ioutil_ext/_ioutil.abi3.so"
_VERSION = re.compile(rb"OpenSSL (3\.\d+\.\d+) \d+ \w+ \d{4}\0")


def main() -> None:
    environment, wheel = (Path(name) for name in sys.argv[1:])
    document = json.loads(environment.read_text())
    with zipfile.ZipFile(wheel) as archive:
        found = _VERSION.search(archive.read(_EXTENSION))
    if found is None:
        sys.exit(f"sbom: {wheel}: {_EXTENSION} has no OpenSSL")
    document["metadata"]["component"]["version"] = wheel.name.split("-")[1]
    document["components"].append(_openssl(found[1].decode()))
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    print()


def _openssl(version: str) -> dict[str, object]:
    return {
        "type": "library",
        "bom-ref": "openssl",
        "name": "openssl",
        "version": version,
        "description": f"linked into {_EXTENSION} of the wheel; .deb and .rpm use the system's",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/openssl@{version}",
        "cpe": f"cpe:2.3:a:openssl:openssl:{version}:*:*:*:*:*:*:*",
    }


if __name__ == "__main__":
    main()
