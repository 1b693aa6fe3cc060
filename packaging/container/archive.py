# SPDX-License-Identifier: Apache-2.0
"""Make the docker-archive of an image the same in each build.

Usage: archive.py BUILT RESULT. buildah 1.28 writes the number of its working container, and a host name made of it,
into the configuration of an image, also with --timestamp. The layers are the same in each build. What is written here
is what "docker save" documents: manifest.json, a configuration with the name of its SHA-256, and the layers.
"""

import hashlib
import io
import json
import sys
import tarfile
from typing import IO


def add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)  # of root, at the start of time
    member.size = size
    archive.addfile(member, content)


def settled(config: dict[str, dict[str, object]]) -> bytes:
    """Return a configuration without what differs from build to build."""
    del config["container"]
    for part in ("config", "container_config"):
        del config[part]["Hostname"]
    return json.dumps(config, sort_keys=True).encode()


def main() -> None:
    _, built, result = sys.argv
    with tarfile.open(built) as source, tarfile.open(result, "w") as archive:
        (image,) = json.loads(source.extractfile("manifest.json").read())  # type: ignore[union-attr]
        config = settled(json.loads(source.extractfile(image["Config"]).read()))  # type: ignore[union-attr]
        image["Config"] = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = json.dumps([image], sort_keys=True).encode()
        for layer in image["Layers"]:
            member = source.getmember(layer)
            add(archive, layer, source.extractfile(member), member.size)  # type: ignore[arg-type]
        add(archive, image["Config"], io.BytesIO(config), len(config))
        add(archive, "manifest.json", io.BytesIO(manifest), len(manifest))


if __name__ == "__main__":
    main()
