# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed at any system call tells of durable ranges only what the image has.

A few deaths each time, a thousand and more with IMAGEIO_TEST_LONG=1. IMAGEIO_TEST_SEED=number tries the same once more;
when what happens is another matter.
"""

import os
import random
import secrets
import shutil
from pathlib import Path

import pytest

from tests.soak.crash.clients import Tally
from tests.soak.crash.life import Life
from tests.soak.crash.storage import kinds
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.killedcalls import build_library
from tests.support.places import QCOW2
from tests.support.realstorage import Mounts

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
#: Of a test: lives, and deaths of each. Four of five are at system calls: 1,100 of the two tests when it is long.
LIVES, DEATHS = (76, 9) if LONG else (1, 3)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("killed"))


@pytest.mark.timeout(3600)
def test_record_tells_only_what_the_image_has(
    certificates: Certificates, library: Path, tmp_path: Path, mounts: Mounts
) -> None:
    seed = int(os.environ.get("IMAGEIO_TEST_SEED") or secrets.randbelow(10**6))
    tally = Tally()
    for number in range(seed, seed + LIVES):
        directory = tmp_path / str(number)
        directory.mkdir()
        chosen = random.Random(number).sample(kinds(), 2)

        def make(state: Path, number: int = number) -> Daemon:
            config: dict[str, Section] = {
                "daemon": {"state_dir": state},
                "backend_file": {"qcow2": QCOW2},
                "nbd": {"enable": True, "host": "localhost", "port": 0, "socket": tmp_path / f"{number}.nbd"},
            }
            return Daemon(certificates, config)

        life = Life(make, library, directory, mounts, number, tally)
        try:
            life.run(chosen, DEATHS)
        except BaseException as error:
            error.add_note(f"IMAGEIO_TEST_SEED={number}, {chosen}, {tally}")
            raise
        shutil.rmtree(directory)
    print(f"seed {seed}: {tally}")
