# SPDX-License-Identifier: Apache-2.0
"""What is imported when it is used, and not by each command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon import client
from tests.client.programs import TIMEOUT
from tests.support.daemon import PROJECT, Daemon
from tests.support.images import MakeImage, pattern

#: Runs the command with the arguments, and tells which modules it has imported.
PROGRAM = """\
import sys
from imageio_daemon.client.cli import main
status = main()
print(*sys.modules)
sys.exit(status)
"""
#: What a raw file and a server on this host do not need.
NEEDLESS = {"asyncio", "backports.zstd", "imageio_daemon.nbdproto", "subprocess", "tempfile"}


def test_upload_of_a_raw_file_imports_nothing_that_it_does_not_need(
    daemon: Daemon, new_image: MakeImage, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(4096))
    target = new_image(bytes(4096))
    arguments: list[str | Path] = ["upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket)]
    told = subprocess.check_output([sys.executable, "-c", PROGRAM, *arguments], text=True, timeout=TIMEOUT)
    assert target.content() == source.read_bytes()
    assert not NEEDLESS & set(told.split())


def test_package_has_all_its_names() -> None:
    for name in client.__all__:
        assert getattr(client, name) is not None


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        client.__getattr__("other")


#: Imports all that the client has, and tells all modules and where those of others are.
EVERYTHING = """\
import importlib, pkgutil, sys
import imageio_daemon.client as client
for module in pkgutil.walk_packages(client.__path__, f"{client.__name__}."):
    importlib.import_module(module.name)
for name, module in sys.modules.items():
    if "site-packages" in (getattr(module, "__file__", None) or "") or name.startswith("imageio_daemon."):
        print(name)
"""


def test_package_of_the_client_has_all_that_it_imports() -> None:
    """packaging/split moves it: modules of this project, and those of others."""
    split = (PROJECT / "packaging" / "split").read_text()
    ours = {name for names in re.findall(r"^for name in ([a-z_ ]+); do", split, re.MULTILINE) for name in names.split()}
    assert {"client", "units"} <= ours
    told = subprocess.check_output([sys.executable, "-c", EVERYTHING], text=True, timeout=TIMEOUT).split()
    assert {name.split(".")[1] for name in told if name.startswith("imageio_daemon.")} <= ours
    others = {name.split(".")[0] for name in told} - {"imageio_daemon"}
    # What pip and setuptools add to an environment for development is in no package.
    others = {name for name in others if not name.startswith(("__editable__", "_distutils"))}
    assert {name for name in others if f'"$site"/{name}' not in split and f'"$site/{name}"' not in split} == set()
