# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon.errors import ConfigError
from imageio_daemon.runtime.privileges import give, lookup

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.mark.parametrize(("user", "group"), [("no-such-user", "root"), ("root", "no-such-group")])
def test_unknown_name_is_an_error_of_configuration(user: str, group: str) -> None:
    with pytest.raises(ConfigError, match="no-such"):
        lookup(user, group)


@needs_root
def test_path_is_given_to_the_user(tmp_path: Path) -> None:
    identity = lookup("nobody", "nogroup")
    give(str(tmp_path), identity)
    status = tmp_path.stat()
    assert (status.st_uid, status.st_gid) == (identity.uid, identity.gid)


@needs_root
def test_link_is_given_itself_not_what_it_points_to(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    give(str(link), lookup("nobody", "nogroup"))
    assert target.stat().st_uid == 0
    assert link.lstat().st_uid != 0


DROP = """
import json, os
from imageio_daemon.runtime.privileges import drop, lookup
drop(lookup("nobody", "nogroup"))
try:
    os.setuid(0)
    back = True
except PermissionError:
    back = False
print(json.dumps({"uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "back": back}))
"""


@needs_root
def test_dropping_is_complete_and_for_good() -> None:
    identity = lookup("nobody", "nogroup")
    told = json.loads(subprocess.check_output([sys.executable, "-c", DROP], text=True))
    assert told == {
        "uids": [identity.uid] * 3,
        "gids": [identity.gid] * 3,
        "groups": [identity.gid],
        "back": False,
    }
