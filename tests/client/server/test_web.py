# SPDX-License-Identifier: Apache-2.0
"""Images of web servers: those that know ranges, those that do not, and those whose files change."""

import gzip
import hashlib
import json
import lzma
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    ClientError,
    LocalError,
    Refused,
    ServerFailed,
    Settings,
    Temporary,
    Usage,
    upload,
)
from imageio_daemon.client.server.web import shown
from tests.client.programs import run
from tests.support.daemon import Certificates, Daemon
from tests.support.images import Image, MakeImage, MiB, pattern

SIZE = 12 * MiB
CONTENT = pattern(5 * MiB) + bytes(4 * MiB) + pattern(3 * MiB, 1)


@dataclass
class Web:
    """A web server. files: by path. cut: bytes after which an answer breaks, for each request in turn."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    validator: bool = True
    cut: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    cutting: Callable[[], object] = lambda: None
    length: bool = True
    url: str = ""


def handler(web: Web) -> type[BaseHTTPRequestHandler]:
    """Return what serves the requests of a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            web.asked.append(self.headers["Range"])
            if web.statuses:
                self.send_error(web.statuses.pop(0))
            elif path in web.redirects:
                self.send_response(302)
                self.send_header("Location", web.redirects[path])
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif path not in web.files:
                self.send_error(404)
            else:
                self._send(web.files[path])

        def _send(self, data: bytes) -> None:
            tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
            start = 0
            wanted = self.headers["Range"]
            if web.ranges and wanted and self.headers["If-Range"] in (tag, None):
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            if web.length:
                self.send_header("Content-Length", str(len(data) - start))
            if web.validator:
                self.send_header("ETag", tag)
                self.send_header("Last-Modified", formatdate(0, usegmt=True))
            self.end_headers()
            end = start + web.cut.pop(0) if web.cut else len(data)
            self.wfile.write(data[start:end])
            if end < len(data):
                web.cutting()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def web(certificates: Certificates) -> Iterator[Web]:
    """A web server with TLS."""
    web = Web({"/disk.raw": CONTENT})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(web))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    web.url = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def settings(daemon: Daemon) -> Settings:
    return Settings(cafile=str(daemon.cafile), source_cafile=str(daemon.cafile), local=False)


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(b"\xff" * SIZE)


def test_file_is_uploaded(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    done = upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings, verify=True)
    assert target.content() == CONTENT
    assert done.progress.zero == 4 * MiB
    assert web.asked == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_lost_connection_goes_on(daemon: Daemon, web: Web, settings: Settings, target: Image, ranges: bool) -> None:
    web.cut, web.ranges = [3 * MiB, 4 * MiB] if ranges else [3 * MiB, 8 * MiB], ranges
    upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings, verify=True)
    assert target.content() == CONTENT
    assert len(web.asked) == 3
    if ranges:
        assert all(range_ and range_.startswith("bytes=") for range_ in web.asked[1:])


@pytest.mark.parametrize("ranges", [True, False])
def test_file_that_changes_is_told(daemon: Daemon, web: Web, settings: Settings, target: Image, ranges: bool) -> None:
    web.cut, web.ranges = [3 * MiB], ranges
    web.cutting = lambda: web.files.update({"/disk.raw": pattern(SIZE, 5)})
    with pytest.raises(LocalError, match=r"disk.raw has changed while it was read: start anew"):
        upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings)


def test_server_that_tells_no_version_is_not_gone_on_with(
    daemon: Daemon, web: Web, settings: Settings, target: Image
) -> None:
    web.cut, web.validator = [3 * MiB], False
    with pytest.raises(LocalError, match="does not tell whether the file has changed"):
        upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings)


def digest(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
def test_expected_file_is_uploaded(daemon: Daemon, web: Web, settings: Settings, target: Image, algorithm: str) -> None:
    expect = digest(CONTENT, algorithm)
    upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings, expect=expect, verify=True)
    assert target.content() == CONTENT


@pytest.mark.parametrize("name", ["disk.raw", "disk.raw.gz", "disk.qcow2"])
def test_unexpected_file_is_not_finalized(
    daemon: Daemon, web: Web, settings: Settings, target: Image, tmp_path: Path, name: str
) -> None:
    web.files |= {"/disk.raw.gz": gzip.compress(CONTENT, 1), "/disk.qcow2": qcow2(tmp_path, CONTENT)}
    options = {"verify": True, "expect": digest(b"another file")}
    with pytest.raises(ChecksumMismatch, match="which was expected"):
        upload(f"{web.url}/{name}", daemon.url(target.ticket), settings=settings, **options)  # type: ignore[arg-type]
    upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings, restart=True)


def qcow2(directory: Path, content: bytes) -> bytes:
    """Return a qcow2 image."""
    (directory / "raw").write_bytes(content)
    subprocess.run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", directory / "raw", directory / "image"], check=True
    )
    return (directory / "image").read_bytes()


@pytest.mark.parametrize("name", ["disk.raw.gz", "disk.qcow2", "disk.qcow2.xz", "disk.raw.xz"])
def test_other_files_are_spooled(
    daemon: Daemon, web: Web, settings: Settings, target: Image, tmp_path: Path, name: str
) -> None:
    data = qcow2(tmp_path, CONTENT) if "qcow2" in name else CONTENT
    pack = {"gz": lambda: gzip.compress(data, 1), "xz": lambda: lzma.compress(data, preset=0)}
    web.files[f"/{name}"] = pack.get(name.rpartition(".")[2], lambda: data)()
    web.cut = [MiB]
    expect = digest(web.files[f"/{name}"])
    upload(f"{web.url}/{name}?token=secret", daemon.url(target.ticket), settings=settings, expect=expect, verify=True)
    assert target.content() == CONTENT


def test_redirections_are_followed(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    web.redirects = {"/latest": "/mirror/latest", "/mirror/latest": f"{web.url}/disk.raw"}
    upload(f"{web.url}/latest", daemon.url(target.ticket), settings=settings)
    assert target.content() == CONTENT


def test_link_that_has_expired_is_asked_for_again(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    def expire() -> None:
        web.files = {"/signed/2": CONTENT}
        web.redirects = {"/latest": "/signed/2"}

    web.files, web.redirects = {"/signed/1": CONTENT}, {"/latest": "/signed/1"}
    web.cut, web.cutting = [3 * MiB], expire
    upload(f"{web.url}/latest", daemon.url(target.ticket), settings=settings)
    assert target.content() == CONTENT


def test_mirror_that_has_the_file_is_asked_again(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    web.files |= {"/other": pattern(SIZE, 5)}
    web.redirects = {"/latest": "/disk.raw"}
    web.cut, web.cutting = [3 * MiB], lambda: web.redirects.update({"/latest": "/other"})
    upload(f"{web.url}/latest", daemon.url(target.ticket), settings=settings)
    assert target.content() == CONTENT


@pytest.mark.parametrize(
    ("to", "error", "told"),
    [
        ("/disk", ServerFailed, "redirects more than 10 times"),
        ("http://localhost/x", ServerFailed, "redirects to a server without TLS, localhost"),
        ("ftp://localhost/x", Usage, "must look like https://HOST/PATH"),
        ("https://[localhost/x", Usage, "must look like https://HOST/PATH"),
    ],
)
def test_redirections_that_lead_nowhere_are_told(
    daemon: Daemon, web: Web, settings: Settings, target: Image, to: str, error: type[ClientError], told: str
) -> None:
    web.redirects = {"/disk": to}
    with pytest.raises(error, match=told):
        upload(f"{web.url}/disk", daemon.url(target.ticket), settings=settings)


def test_busy_server_is_asked_again(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    web.statuses = [503, 429]
    upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings)
    assert target.content() == CONTENT


@pytest.mark.parametrize(
    ("path", "statuses", "error", "told"),
    [
        ("/no-such?secret", [], Refused, r"https://localhost:\d+/no-such: 404 Not Found$"),
        ("/disk.raw", [300], ServerFailed, "300 .*: that is no file"),
        ("/disk.raw", [500] * 9, Temporary, "500 "),
    ],
)
def test_refusals_are_told(
    daemon: Daemon,
    web: Web,
    target: Image,
    path: str,
    statuses: list[int],
    error: type[ClientError],
    told: str,
) -> None:
    web.statuses = statuses
    impatient = Settings(cafile=str(daemon.cafile), source_cafile=str(daemon.cafile), local=False, retry_for=0)
    with pytest.raises(error, match=told):
        upload(f"{web.url}{path}", daemon.url(target.ticket), settings=impatient)


def test_file_of_no_size_needs_one(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    web.length = False
    with pytest.raises(Usage, match="a stream needs --size"):
        upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings)
    upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=settings, size=SIZE)
    assert target.content() == CONTENT


def test_authorities_of_the_system_are_trusted_otherwise(daemon: Daemon, web: Web, target: Image) -> None:
    with pytest.raises(ServerFailed, match=r"can't be verified: .*\. --source-cafile FILE trusts .* signed it$"):
        upload(f"{web.url}/disk.raw", daemon.url(target.ticket), settings=Settings(cafile=str(daemon.cafile)))


@pytest.mark.parametrize(
    "url", ["https://", "https://user@host/x", "https://host:0x/x", "https://host/a b", "https://h..h/x"]
)
def test_other_urls_are_refused(daemon: Daemon, settings: Settings, url: str) -> None:
    with pytest.raises(Usage, match="must look like https://HOST/PATH"):
        upload(url, daemon.url("x"), settings=settings)


@pytest.mark.parametrize("path", ["/images/d0f1-secret", "/ui/#d0f1-secret"])
def test_image_with_a_ticket_is_no_file(daemon: Daemon, settings: Settings, path: str) -> None:
    with pytest.raises(Usage, match="the command copy takes it") as raised:
        upload(f"https://localhost:1{path}", daemon.url("x"), settings=settings)
    assert "secret" not in str(raised.value)


def test_file_below_images_is_one(daemon: Daemon, web: Web, settings: Settings, target: Image) -> None:
    for path in ("/images/disk.raw", "/images/cloud/latest"):
        web.files[path] = CONTENT
        upload(f"{web.url}{path}", daemon.url(target.ticket), settings=settings, restart=True)
        assert target.content() == CONTENT


def test_query_is_not_shown(daemon: Daemon, web: Web, target: Image) -> None:
    web.files["/empty"] = b""
    options = ["--no-local", "--cafile", str(daemon.cafile), "--source-cafile", str(daemon.cafile), "--dry-run"]
    for path in ("/disk.raw", "/empty"):
        done = run("upload", "--json", *options, f"{web.url}{path}?signature=secret", daemon.url(target.ticket))
        assert f"{web.url}{path}" in done.out, done
        assert "secret" not in done.out + done.err


def test_format_is_that_of_the_name_before_the_query(daemon: Daemon, web: Web, target: Image) -> None:
    web.files["/disk.raw.gz"] = gzip.compress(CONTENT, 1)
    options = ["--no-local", "--cafile", str(daemon.cafile), "--source-cafile", str(daemon.cafile), "--dry-run"]
    done = run("upload", "--json", *options, f"{web.url}/disk.raw.gz?token=x.qcow2", daemon.url(target.ticket))
    assert json.loads(done.out)["format"] == "raw, gz"


@pytest.mark.parametrize("host", ["[::1]", "localhost"])
def test_default_port_is_not_shown(host: str) -> None:
    assert shown(f"https://{host}/disk.raw?x") == f"https://{host}/disk.raw"
    assert shown(f"https://{host}:8443/disk.raw") == f"https://{host}:8443/disk.raw"


def test_plain_http_has_to_be_allowed(daemon: Daemon, settings: Settings) -> None:
    with pytest.raises(Usage, match="anybody on the way can change the image"):
        upload("http://localhost/disk.raw", daemon.url("x"), settings=settings)


@pytest.mark.parametrize("expect", ["sha256", "sha256:", "sha256:xyz", "sha256:00", "crc32:00", "sha256:é"])
def test_digests_that_are_none_are_told(daemon: Daemon, settings: Settings, tmp_path: Path, expect: str) -> None:
    with pytest.raises(Usage):
        upload(tmp_path / "any", daemon.url("x"), settings=settings, expect=expect)


def test_local_file_may_be_expected_too(daemon: Daemon, settings: Settings, target: Image, tmp_path: Path) -> None:
    (tmp_path / "disk.raw").write_bytes(CONTENT)
    url = daemon.url(target.ticket)
    with pytest.raises(ChecksumMismatch, match="which was expected"):
        upload(tmp_path / "disk.raw", url, settings=settings, expect=digest(b""))
    assert target.content() == b"\xff" * SIZE, "nothing was sent"
    upload(tmp_path / "disk.raw", url, settings=settings, expect=digest(CONTENT).upper().replace("SHA256", "sha256"))
    assert target.content() == CONTENT
    with pytest.raises(Usage, match="the digest of a file"):
        upload("nbd://localhost/", url, settings=settings, expect=digest(b""))


@pytest.mark.parametrize("name", ["disk.raw.gz", "disk.raw.xz", "disk.tar.gz"])
def test_compressed_file_of_this_host_is_compared_before_anything_is_sent(
    daemon: Daemon, settings: Settings, target: Image, tmp_path: Path, name: str
) -> None:
    (tmp_path / "disk.raw").write_bytes(CONTENT)
    subprocess.run(["tar", "--create", "--file", "disk.tar", "disk.raw"], cwd=tmp_path, check=True)
    data = (tmp_path / name.rpartition(".")[0]).read_bytes()
    path, url = tmp_path / name, daemon.url(target.ticket)
    path.write_bytes(lzma.compress(data, preset=0) if name.endswith("xz") else gzip.compress(data, 1))
    with pytest.raises(ChecksumMismatch, match="which was expected"):
        upload(path, url, settings=settings, expect=digest(b""))
    assert target.content() == b"\xff" * SIZE
    upload(path, url, settings=settings, expect=digest(path.read_bytes()))
    assert target.content() == CONTENT


def test_command_uploads_a_link(daemon: Daemon, web: Web, target: Image) -> None:
    options = ["--no-local", "--cafile", str(daemon.cafile), "--source-cafile", str(daemon.cafile)]
    done = run("upload", *options, "--expect", digest(CONTENT), f"{web.url}/disk.raw", daemon.url(target.ticket))
    assert done.status == 0, done
    assert target.content() == CONTENT
