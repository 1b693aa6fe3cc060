# SPDX-License-Identifier: Apache-2.0
"""A backup job of a running machine: what libvirt and imageio-daemon are told at its begin, and at its end.

The job serves a frozen view of all disks by NBD, on one unix socket, for as long as it runs; a bitmap tells what has
changed since the checkpoint of the backup before. It ends when it is told to, and never by itself.
"""

import contextlib
import http.client
import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

import libvirt

#: Of the names of our checkpoints; others are left alone.
PREFIX = "backup-"
#: Seconds for an answer of the control service.
ANSWER_TIME = 60.0
#: Errors of libvirt that mean that there is no job.
_NO_JOB = {libvirt.VIR_ERR_NO_DOMAIN_BACKUP, libvirt.VIR_ERR_OPERATION_INVALID}
#: Errors of a checkpoint whose bitmap was lost, with qemu for instance.
_NO_BITMAP = {libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT}


class BackupError(Exception):
    """What is wrong, in a line for the user."""


@dataclass(frozen=True)
class Disk:
    """A disk of a machine. name: its target, as vda. size: in bytes. ticket: the id, a secret, to read it with.

    scratch: the file that libvirt makes for what the guest overwrites meanwhile.
    """

    name: str
    size: int
    ticket: str
    scratch: Path


@dataclass(frozen=True)
class Job:
    """A backup of a machine, by its UUID, and where it leaves something.

    name: of the checkpoint that it makes. previous: that of the last complete backup, if there is one. is_increment: to
    previous; otherwise all is copied. socket: on which libvirt serves the disks. freezes: the guest's agent freezes its
    file systems at the begin. control: the control socket of imageio-daemon. directory: has the copies when all is
    complete.
    """

    uri: str
    machine: str
    name: str
    previous: str | None
    is_increment: bool
    socket: Path
    freezes: bool
    control: Path
    directory: Path
    disks: tuple[Disk, ...]

    @property
    def part(self) -> Path:
        """Return the name of the directory until the backup is complete."""
        return self.directory.with_name(f"{self.name}.part")

    # The job. Each connects anew: libvirt's service may have been restarted

    def begin(self) -> None:
        """Begin the job and make the checkpoint, at one moment for all disks. Raises libvirtError."""
        machine = self._machine()
        try:
            if self.freezes:
                machine.fsFreeze()
            machine.backupBegin(self._backup_xml(), self._checkpoint_xml())
        except libvirt.libvirtError:
            with contextlib.suppress(libvirt.libvirtError):  # also if freezing has failed: some may be frozen
                self._thaw(machine)
            raise
        self._thaw(machine)

    def has_paused(self) -> bool:
        """Tell whether the machine is paused by an error of its storage, and the job runs. Raises libvirtError."""
        machine = self._machine()
        return _is_paused(machine) and self._runs(machine)

    def end(self) -> None:
        """End the job, and remove all our checkpoints but that of the last complete backup.

        Raises BlockingIOError while it is ending, and libvirtError: to be tried again.
        """
        try:
            machine = self._machine()
        except libvirt.libvirtError as e:
            if e.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return  # it was not defined, and was ended, and its job with it
            raise
        if self._runs(machine):
            machine.abortJob()
            raise BlockingIOError("libvirt does not end the job")
        if _is_paused(machine):
            machine.resume()
        kept = self.name if self.directory.exists() else self.previous
        for checkpoint in machine.listAllCheckpoints() if machine.isActive() else []:
            if checkpoint.getName().startswith(PREFIX) and checkpoint.getName() != kept:
                _delete(checkpoint)

    def remove_files(self) -> None:
        """Remove an incomplete copy, and what libvirt leaves behind.

        That is the socket if the machine was ended, and scratch files if libvirt's service was killed meanwhile.
        """
        shutil.rmtree(self.part, ignore_errors=True)
        self.socket.unlink(missing_ok=True)
        for disk in self.disks:
            with contextlib.suppress(PermissionError):  # who is not root can't, and need not
                disk.scratch.unlink(missing_ok=True)

    def _machine(self) -> "libvirt.virDomain":
        return libvirt.open(self.uri).lookupByUUIDString(self.machine)

    def _runs(self, machine: "libvirt.virDomain") -> bool:
        """Tell whether the job of the machine is this one."""
        try:
            return str(self.socket) in machine.backupGetXMLDesc()
        except libvirt.libvirtError as e:
            if e.get_error_code() in _NO_JOB:
                return False
            raise

    def _thaw(self, machine: "libvirt.virDomain") -> None:
        if self.freezes:
            machine.fsThaw()

    # Tickets

    def add_ticket(self, disk: Disk) -> None:
        """Install the ticket to read a disk. Raises OSError."""
        ticket = {
            "uuid": disk.ticket,
            "url": f"nbd:unix:{self.socket}:exportname={disk.name}",
            "size": disk.size,
            "timeout": 300,  # seconds; each request renews it
            "ops": ["read"],
            "dirty": self.is_increment,
        }
        control_request(self.control, "PUT", disk.ticket, ticket)

    def remove_tickets(self) -> None:
        """Remove the tickets, and return when nobody reads the disks any more."""
        for disk in self.disks:
            # A daemon that is not there now forgets them when they expire.
            with contextlib.suppress(OSError):
                control_request(self.control, "DELETE", disk.ticket)

    # What libvirt is told

    def _backup_xml(self) -> str:
        root = Xml.Element("domainbackup", mode="pull")
        if self.is_increment:
            Xml.SubElement(root, "incremental").text = self.previous
        Xml.SubElement(root, "server", transport="unix", socket=str(self.socket))
        disks = Xml.SubElement(root, "disks")
        for disk in self.disks:
            told = Xml.SubElement(disks, "disk", name=disk.name, type="file")
            Xml.SubElement(told, "scratch", file=str(disk.scratch))
        return Xml.tostring(root, encoding="unicode")

    def _checkpoint_xml(self) -> str:
        root = Xml.Element("domaincheckpoint")
        Xml.SubElement(root, "name").text = self.name
        disks = Xml.SubElement(root, "disks")
        for disk in self.disks:
            Xml.SubElement(disks, "disk", name=disk.name, checkpoint="bitmap")
        return Xml.tostring(root, encoding="unicode")


def _delete(checkpoint: "libvirt.virDomainCheckpoint") -> None:
    try:
        checkpoint.delete()
    except libvirt.libvirtError as e:
        if e.get_error_code() not in _NO_BITMAP:
            raise
        checkpoint.delete(libvirt.VIR_DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY)


def _is_paused(machine: "libvirt.virDomain") -> bool:
    paused = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR]
    return bool(machine.state() == paused)


def control_request(control: Path, method: str, ticket: str, body: object = None) -> None:
    """Send a request to the control service. Raises OSError."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(ANSWER_TIME)
        connection.sock.connect(str(control))
        connection.request(method, f"/tickets/{ticket}", None if body is None else json.dumps(body))
        answer = connection.getresponse()
        if answer.status not in (200, 204):
            raise OSError(f"imageio-daemon refuses a ticket: {answer.read(1000).decode(errors='replace').strip()}")
    except http.client.HTTPException as e:
        raise OSError(f"imageio-daemon: {e!r}") from e
    finally:
        connection.close()
