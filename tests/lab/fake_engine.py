# SPDX-License-Identifier: Apache-2.0
"""A small engine: what virt-v2v and the examples of oVirt's SDK ask of the engine's REST API (XML, version 4).

There is one data center with one cluster, one storage domain, whose disks are files, and one host, which is this one.
An image transfer is a ticket of the daemon, which is also the one behind proxy_url. Nothing takes time here.
"""

import json
import re
import ssl
import subprocess
import threading
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.support.daemon import Certificates, Daemon

API = "/ovirt-engine/api"
USER, PASSWORD = "admin@internal", "secret & <more>"
#: The names of what there is one of.
STORAGE, CLUSTER = "storage", "Default"
DATA_CENTER_ID, CLUSTER_ID, STORAGE_ID, HOST_ID = (str(uuid.UUID(int=number)) for number in range(1, 5))
#: Of disks, as the API and as others name them.
_FORMATS = {"raw": "raw", "cow": "qcow2"}
#: Of the host, as in its /etc/vdsm/vdsm.id.
HARDWARE_ID = str(uuid.UUID(int=5))
_TOKEN = "token"


class FaultError(Exception):
    """A refusal."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class Disk:
    """A disk. format: as the API names them, raw or cow. size: in bytes, as the guest sees it."""

    name: str
    path: Path
    size: int
    format: str
    id: str

    @property
    def xml(self) -> str:
        stored = self.path.stat()
        return (
            f'<disk id="{self.id}" href="{API}/disks/{self.id}"><name>{escape(self.name)}</name>'
            f"<alias>{escape(self.name)}</alias><status>ok</status><format>{self.format}</format><sparse>true</sparse>"
            f"<content_type>data</content_type><provisioned_size>{self.size}</provisioned_size>"
            f"<actual_size>{stored.st_blocks * 512}</actual_size><total_size>{stored.st_size}</total_size>"
            f'<storage_domains><storage_domain id="{STORAGE_ID}"/></storage_domains></disk>'
        )


@dataclass
class Transfer:
    """An image transfer."""

    disk: Disk
    direction: str
    ticket: str
    url: str
    phase: str = "initializing"
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def xml(self) -> str:
        return (
            f'<image_transfer id="{self.id}" href="{API}/imagetransfers/{self.id}"><phase>{self.phase}</phase>'
            f'<direction>{self.direction}</direction><disk id="{self.disk.id}"/><host id="{HOST_ID}"/>'
            f"<transfer_url>{self.url}</transfer_url><proxy_url>{self.url}</proxy_url></image_transfer>"
        )


class Engine:
    """The state. directory: of the disks. url: of the API."""

    def __init__(self, daemon: Daemon, directory: Path, url: str = "") -> None:
        self._daemon = daemon
        self._directory = directory
        self._lock = threading.Lock()
        self.url = url
        self.disks: dict[str, Disk] = {}
        self.transfers: dict[str, Transfer] = {}
        #: The OVF documents of the machines, by their names.
        self.machines: dict[str, str] = {}
        #: What was asked for that is not here: the checks want it to be empty.
        self.unknown: list[str] = []

    def answer(self, method: str, target: str, body: bytes) -> str:
        """Return the document that answers a request. Raises FaultError."""
        parts = urlsplit(target)
        search = parse_qs(parts.query).get("search", [""])[0]
        for name, pattern, answered in _ROUTES:
            match = pattern.fullmatch(parts.path.removeprefix(API))
            if method == name and match is not None and parts.path.startswith(API):
                with self._lock:
                    return answered(self, _Asked(match[1] if match.lastindex else "", search, body))
        self.unknown.append(f"{method} {parts.path}")
        raise FaultError(404, "there is no such thing in this engine")

    def add_disk(self, asked: "_Asked") -> str:
        wanted = ET.fromstring(asked.body)
        if wanted.findtext("storage_domains/storage_domain/name") != STORAGE:
            raise FaultError(400, "no such storage domain")
        id_ = wanted.get("id") or str(uuid.uuid4())
        kind, size = wanted.findtext("format", ""), int(wanted.findtext("provisioned_size", ""))
        disk = Disk(wanted.findtext("name", ""), self._directory / id_, size, kind, id_)
        if id_ in self.disks:
            raise FaultError(409, "there is such a disk")
        subprocess.run(["qemu-img", "create", "-q", "-f", _FORMATS[kind], disk.path, str(size)], check=True)
        self.disks[id_] = disk
        return disk.xml

    def add_transfer(self, asked: "_Asked") -> str:
        wanted = ET.fromstring(asked.body)
        named = wanted.find("disk")
        disk = self.find_disk("" if named is None else named.get("id", ""))
        direction = wanted.findtext("direction", "upload")
        if wanted.findtext("format") != "raw":
            raise FaultError(400, "only what the guest sees is transferred")
        ticket = self._daemon.add_ticket(
            disk.path,
            disk.size,
            ops=["read" if direction == "download" else "write"],
            sparse=True,
            timeout=3600,
            inactivity_timeout=int(wanted.findtext("inactivity_timeout", "60")),
            format=_FORMATS[disk.format],
        )
        transfer = Transfer(disk, direction, ticket, self._daemon.url(ticket))
        self.transfers[transfer.id] = transfer
        return transfer.xml

    def show_transfer(self, asked: "_Asked") -> str:
        """Tell of a transfer, which began a moment ago."""
        transfer = self._transfer(asked)
        told = transfer.xml
        if transfer.phase == "initializing":
            transfer.phase = "transferring"
        return told

    def finalize(self, asked: "_Asked") -> str:
        self._end(asked, "finished_success")
        return "<action><status>complete</status></action>"

    def cancel(self, asked: "_Asked") -> str:
        transfer = self._end(asked, "finished_failure")
        if transfer.direction == "upload":
            del self.disks[transfer.disk.id]
            transfer.disk.path.unlink()
        return "<action><status>complete</status></action>"

    def _end(self, asked: "_Asked", phase: str) -> Transfer:
        transfer = self._transfer(asked)
        if transfer.phase != "transferring":
            raise FaultError(409, f"the transfer is {transfer.phase}")
        self._daemon.remove(transfer.ticket)
        transfer.phase = phase
        return transfer

    def _transfer(self, asked: "_Asked") -> Transfer:
        if asked.id not in self.transfers:
            raise FaultError(404, "no such transfer")
        return self.transfers[asked.id]

    def find_disk(self, id_: str) -> Disk:
        """Return a disk. Raises FaultError."""
        if id_ not in self.disks:
            raise FaultError(404, "no such disk")
        return self.disks[id_]

    def add_machine(self, asked: "_Asked") -> str:
        """Make a machine, of which an OVF tells all but its cluster. Its disks have to be here."""
        wanted = ET.fromstring(asked.body)
        ovf = wanted.findtext("initialization/configuration/data", "")
        name = ET.fromstring(ovf).findtext("VirtualSystem/Name", "")
        disks = [id_ for id_ in self.disks if id_ in ovf]
        if not name or not disks or name in self.machines:
            raise FaultError(400, "the machine cannot be made")
        self.machines[name] = ovf
        return f'<vm id="{uuid.uuid4()}"><name>{escape(name)}</name></vm>'

    def list_machines(self, asked: "_Asked") -> str:
        found = [name for name in self.machines if asked.search == f"name={name}"]
        return _listed("vms", *(f'<vm id="{uuid.uuid4()}"><name>{escape(name)}</name></vm>' for name in found))


@dataclass(frozen=True)
class _Asked:
    """A request. id: in its path. search: of its query."""

    id: str
    search: str
    body: bytes


def _listed(name: str, *entries: str) -> str:
    return f"<{name}>{''.join(entries)}</{name}>"


_CLUSTER_XML = (
    f'<cluster id="{CLUSTER_ID}" href="{API}/clusters/{CLUSTER_ID}"><name>{CLUSTER}</name>'
    "<cpu><architecture>x86_64</architecture></cpu></cluster>"
)
_STORAGE_XML = (
    f'<storage_domain id="{STORAGE_ID}" href="{API}/storagedomains/{STORAGE_ID}"><name>{STORAGE}</name>'
    "<type>data</type><status>active</status></storage_domain>"
)
_DATA_CENTER_XML = (
    f'<data_center id="{DATA_CENTER_ID}" href="{API}/datacenters/{DATA_CENTER_ID}"><name>center</name>'
    f'<link rel="clusters" href="{API}/datacenters/{DATA_CENTER_ID}/clusters"/>'
    f'<link rel="storagedomains" href="{API}/datacenters/{DATA_CENTER_ID}/storagedomains"/></data_center>'
)
_HOST_XML = f'<host id="{HOST_ID}" href="{API}/hosts/{HOST_ID}"><name>host</name><status>up</status></host>'
_API_XML = (
    "<api><product_info><name>oVirt Engine</name><vendor>ovirt.org</vendor><version><major>4</major><minor>5</minor>"
    "<build>6</build><revision>0</revision><full_version>4.5.6</full_version></version></product_info></api>"
)


def _if_searched(name: str, entry: str, wanted: str) -> Callable[[Engine, _Asked], str]:
    """Return what lists one thing, if a search is for it."""
    return lambda _, asked: _listed(name, *([entry] if wanted in asked.search else []))


_ROUTES: list[tuple[str, re.Pattern[str], Callable[[Engine, _Asked], str]]] = [
    (method, re.compile(pattern), answered)
    for method, pattern, answered in (
        ("GET", "/?", lambda *_: _API_XML),
        ("GET", "/datacenters", _if_searched("data_centers", _DATA_CENTER_XML, f"storage.name={STORAGE}")),
        ("GET", "/datacenters/[^/]+/clusters", lambda *_: _listed("clusters", _CLUSTER_XML)),
        ("GET", "/datacenters/[^/]+/storagedomains", lambda *_: _listed("storage_domains", _STORAGE_XML)),
        ("GET", f"/clusters/{CLUSTER_ID}", lambda *_: _CLUSTER_XML),
        ("GET", f"/storagedomains/{STORAGE_ID}", lambda *_: _STORAGE_XML),
        ("GET", f"/hosts/{HOST_ID}", lambda *_: _HOST_XML),
        ("GET", "/jobs", lambda *_: _listed("jobs")),
        ("GET", "/hosts", _if_searched("hosts", _HOST_XML, f"hw_id={HARDWARE_ID}")),
        ("POST", "/disks", Engine.add_disk),
        ("GET", "/disks/([^/]+)", lambda engine, asked: engine.find_disk(asked.id).xml),
        ("POST", "/imagetransfers", Engine.add_transfer),
        ("GET", "/imagetransfers/([^/]+)", Engine.show_transfer),
        ("POST", "/imagetransfers/([^/]+)/finalize", Engine.finalize),
        ("POST", "/imagetransfers/([^/]+)/cancel", Engine.cancel),
        ("GET", "/vms", Engine.list_machines),
        ("POST", "/vms", Engine.add_machine),
    )
]


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """Return what serves the requests of an engine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if path == "/ovirt-engine/sso/oauth/token":
                asked = {key: values[0] for key, values in parse_qs(body.decode()).items()}
                known = (asked.get("username"), asked.get("password")) == (USER, PASSWORD)
                told = {"access_token": _TOKEN} if known else {"error": "access_denied"}
                self._send(200, "application/json", json.dumps(told))
            elif path == "/ovirt-engine/services/sso-logout":
                self._send(200, "application/json", "{}")
            elif self.headers["Authorization"] != f"Bearer {_TOKEN}":
                self._send(401, "text/html", "<html/>")
            else:
                self._send_document(body)

        do_POST = do_GET  # noqa: N815 - as http.server wants it

        def _send_document(self, body: bytes) -> None:
            status = 201 if self.command == "POST" and not self.path.endswith(("finalize", "cancel")) else 200
            try:
                document = engine.answer(self.command, self.path, body)
            except FaultError as e:
                status, reason = e.status, HTTPStatus(e.status).phrase
                document = f"<fault><reason>{reason}</reason><detail>{escape(str(e))}</detail></fault>"
            self._send(status, "application/xml;charset=UTF-8", f'<?xml version="1.0" encoding="UTF-8"?>{document}')

        def _send(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def running_engine(daemon: Daemon, certificates: Certificates, directory: Path) -> Iterator[Engine]:
    """Run an engine for a daemon, with TLS, on a free port."""
    engine = Engine(daemon, directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(engine))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    engine.url = f"https://localhost:{server.server_address[1]}{API}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
