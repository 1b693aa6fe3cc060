# SPDX-License-Identifier: Apache-2.0
"""In place of libvirt's binding: one machine without a guest, whose disk the test writes.

What a backup job serves is real: a copy of the qcow2 disk by qemu-nbd, with a real bitmap. A connection is a directory,
`fake:PATH`. It has the disk, vda.qcow2, and what other processes have to know: `job`, the XML of the job that runs, and
`paused`, `stopped` or `undefined`, if the machine is. `held` is a FIFO: a job begins, and who asked is answered when it
is opened; `hangs` is one for those who ask whether a job runs. `agent`: the guest has one, and `frozen` is its state.
`backup-lost`: there is a checkpoint of that name, without a bitmap.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

VIR_ERR_INTERNAL_ERROR = 1
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_OPERATION_INVALID = 55
VIR_ERR_NO_DOMAIN_CHECKPOINT = 102
VIR_ERR_NO_DOMAIN_BACKUP = 103
VIR_ERR_CHECKPOINT_INCONSISTENT = 104
VIR_DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY = 2
VIR_DOMAIN_RUNNING = 1
VIR_DOMAIN_PAUSED = 3
VIR_DOMAIN_RUNNING_UNPAUSED = 5
VIR_DOMAIN_PAUSED_IOERROR = 5

_UUID = "5a3f1ee2-5b0a-4a4e-9a53-1f1f4a3c1c11"


class libvirtError(Exception):  # noqa: N801 - as the binding calls it
    """An error with its number."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self._code = code

    def get_error_code(self) -> int:
        return self._code


def registerErrorHandler(handler: object, context: object) -> None:  # noqa: N802
    """Take a handler that is not needed."""


def open(uri: str) -> "virConnect":  # noqa: A001
    directory = Path(uri.removeprefix("fake:"))
    if not directory.is_dir():
        raise libvirtError(f"there is no {directory}")
    return virConnect(directory)


class virConnect:  # noqa: N801
    """A connection to the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def close(self) -> None:
        """Close nothing."""

    def lookupByName(self, name: str) -> "virDomain":  # noqa: N802
        if name != "machine":
            raise libvirtError(f"no domain with matching name '{name}'", VIR_ERR_NO_DOMAIN)
        return virDomain(self._directory)

    def lookupByUUIDString(self, uuid: str) -> "virDomain":  # noqa: N802
        if (self._directory / "undefined").exists():
            raise libvirtError(f"no domain with matching uuid '{uuid}'", VIR_ERR_NO_DOMAIN)
        return virDomain(self._directory)


class virDomain:  # noqa: N801
    """The machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = directory / "vda.qcow2"
        self._job = directory / "job"
        self._frozen = directory / "frozen"

    def name(self) -> str:
        return "machine"

    def UUIDString(self) -> str:  # noqa: N802
        return _UUID

    def isActive(self) -> bool:  # noqa: N802
        return not (self._directory / "stopped").exists()

    def state(self) -> list[int]:
        if (self._directory / "paused").exists():
            return [VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_IOERROR]
        return [VIR_DOMAIN_RUNNING, VIR_DOMAIN_RUNNING_UNPAUSED]

    def resume(self) -> None:
        (self._directory / "paused").unlink()

    def XMLDesc(self) -> str:  # noqa: N802
        return (self._directory / "machine.xml").read_text()

    def blockInfo(self, name: str) -> list[int]:  # noqa: N802
        return [int(_info(self._disk)["virtual-size"]), 0, 0]

    def fsFreeze(self) -> None:  # noqa: N802
        if not (self._directory / "agent").exists():
            raise libvirtError("QEMU guest agent is not configured")
        self._frozen.touch()

    def fsThaw(self) -> None:  # noqa: N802
        self._frozen.unlink(missing_ok=True)

    # Checkpoints: each is a bitmap that goes on until it is removed

    def listAllCheckpoints(self) -> list["virDomainCheckpoint"]:  # noqa: N802
        bitmaps = _info(self._disk)["format-specific"]["data"].get("bitmaps", [])
        lost = [path.name for path in self._directory.glob("backup-lost")]
        return [virDomainCheckpoint(self._disk, name) for name in [*(bitmap["name"] for bitmap in bitmaps), *lost]]

    # Backup jobs

    def backupBegin(self, backup: str, checkpoint: str) -> None:  # noqa: N802
        told, named = Xml.fromstring(backup), Xml.fromstring(checkpoint).findtext("name")
        bitmap = told.findtext("incremental")
        if self._job.exists():
            raise libvirtError("cannot acquire state change lock (held by monitor=remoteDispatchDomainBackupBegin)")
        if bitmap is not None and bitmap not in [known.getName() for known in self.listAllCheckpoints()]:
            raise libvirtError(f"Domain checkpoint not found: Checkpoint '{bitmap}'", VIR_ERR_NO_DOMAIN_CHECKPOINT)
        view, server, disk = self._directory / "view.qcow2", told.find("server"), told.find("disks/disk")
        assert server is not None
        assert disk is not None
        shutil.copyfile(self._disk, view)
        _run("qemu-img", "bitmap", "--add", str(self._disk), str(named))
        served = ["--read-only", "--persistent", "--shared=8", "--format=qcow2", f"--export-name={disk.get('name')}"]
        kept = [f"--socket={server.get('socket')}", f"--pid-file={self._directory / 'pid'}", "--fork"]
        _run("qemu-nbd", *served, *kept, *([] if bitmap is None else [f"--bitmap={bitmap}"]), str(view))
        self._job.write_text(backup)
        if (held := self._directory / "held").exists():
            held.read_text()

    def backupGetXMLDesc(self) -> str:  # noqa: N802
        if (hangs := self._directory / "hangs").exists():
            hangs.read_text()
        try:
            return self._job.read_text()
        except FileNotFoundError:
            raise libvirtError("Domain backup job id not found: no job", VIR_ERR_NO_DOMAIN_BACKUP) from None

    def abortJob(self) -> None:  # noqa: N802
        os.kill(int((self._directory / "pid").read_text()), signal.SIGTERM)
        self._job.unlink()


class virDomainCheckpoint:  # noqa: N801
    """A checkpoint."""

    def __init__(self, disk: Path, name: str) -> None:
        self._disk = disk
        self._name = name

    def getName(self) -> str:  # noqa: N802
        return self._name

    def delete(self, flags: int = 0) -> None:
        lost = self._disk.with_name(self._name)
        if flags == VIR_DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY:
            lost.unlink()
        elif lost.exists():
            raise libvirtError(f"bitmap '{self._name}' not found in backing chain of 'vda'", VIR_ERR_INTERNAL_ERROR)
        else:
            _run("qemu-img", "bitmap", "--remove", str(self._disk), self._name)


def _info(disk: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_run("qemu-img", "info", "--output=json", "--force-share", str(disk)))
    return told


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _run(*command: str) -> str:
    # libvirt's programs would not inherit what the guard has blocked.
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=_unblock)
    if done.returncode:
        raise libvirtError(f"{command[0]}: {done.stderr}")
    return done.stdout
