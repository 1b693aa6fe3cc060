# SPDX-License-Identifier: Apache-2.0
"""All checks of a configuration. Each runs as the user that it concerns."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..config import files
from ..errors import ConfigError
from ..lifecycle.user import state_path
from ..runtime import privileges
from . import host
from .finding import Finding, Verdict, failed, ok, warning

#: It exists on hosts with systemd (sd_booted(3)), which starts the service as its user.
_SYSTEMD = Path("/run/systemd/system")
UNIT = "imageio-daemon"
#: The directory that has the directories of StateDirectory= (systemd.exec(5)).
_STATE_DIRECTORIES = "/var/lib"
#: Seconds that systemctl has to answer.
SYSTEMCTL_TIMEOUT = 10.0


def check(conf_dir: Path, paths: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield all findings. The service's user should be able to reach the images and directories in `paths`.

    If this runs as root, a child process becomes that user. Otherwise the checks run as the present user.
    """
    try:
        loaded = files.load(conf_dir)
        loaded.check()
    except ConfigError as e:
        yield failed("configuration", str(e))
        return
    yield ok("configuration", str(conf_dir))
    for text in loaded.warnings:
        yield warning("configuration", text)
    config = loaded.config
    unit_state = "" if state_path(config) else next(iter(_unit("StateDirectory")), "")
    unit_state = unit_state and os.path.join(_STATE_DIRECTORIES, unit_state)
    is_root = os.geteuid() == 0 and config.daemon.drop_privileges
    prepared = is_root and not _SYSTEMD.is_dir()
    running = host.is_running(config)
    yield host.open_files(config, _most_files())
    if prepared:
        yield from host.ports(config, running=running)

    def as_user() -> list[Finding]:
        found = [] if prepared else [*_readable(conf_dir), *host.ports(config, running=running)]
        return [*found, *host.of_user(config, paths, prepared=prepared, unit_state=unit_state)]

    if not is_root:
        yield from as_user()
        return
    as_root = host.certificate(config)
    try:
        identity = privileges.lookup(config.daemon.user_name, config.daemon.group_name)
    except ConfigError as e:
        yield failed("user", str(e))
        return
    for finding in _in_child(identity, as_user):
        if prepared and finding.check == as_root.check and as_root.verdict is not Verdict.FAILED:
            yield _renewable(finding)
        else:
            yield finding


def _readable(conf_dir: Path) -> Iterator[Finding]:
    """Check that the user can read the configuration, which root has read."""
    try:
        files.load(conf_dir)
    except ConfigError as e:
        yield failed("configuration", f"as the user of the service: {e}")


def _renewable(certificate: Finding) -> Finding:
    """Turn a failure into a warning: root loads the certificate at the start, but the user cannot load a new one."""
    if certificate.verdict is not Verdict.FAILED:
        return certificate
    return warning(certificate.check, f"after a renewal it cannot be loaded without a restart: {certificate.text}")


def _in_child(identity: privileges.Identity, checks: Callable[[], list[Finding]]) -> Iterator[Finding]:
    """Run the checks in a child process as the user, with the groups that the unit adds."""
    groups = _unit("SupplementaryGroups")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            privileges.drop(identity, groups)
            with os.fdopen(theirs, "w") as answer:
                json.dump(checks(), answer)
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1]:
        yield failed("user", f"the checks as {identity.user_name} have failed")
        return
    for name, verdict, found in json.loads(text):
        yield Finding(name, Verdict(verdict), found)


def _most_files() -> int:
    """Return LimitNOFILE= of the unit, as systemd knows it, or the hard limit of this process."""
    told = next(iter(_unit("LimitNOFILE")), "")
    return int(told) if told.isdecimal() else resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _unit(setting: str) -> Sequence[str]:
    """Return the words of a setting of the unit, or none without systemd."""
    if not _SYSTEMD.is_dir() or shutil.which("systemctl") is None:
        return ()
    command = ["systemctl", "show", f"--property={setting}", "--value", UNIT]
    done = subprocess.run(  # noqa: S603 - no shell
        command, check=False, capture_output=True, text=True, timeout=SYSTEMCTL_TIMEOUT
    )
    return done.stdout.split() if done.returncode == 0 else ()
