# SPDX-License-Identifier: Apache-2.0
"""Reverse proxies of Debian 12, each with its default settings and with those of docs/proxies.md, before a daemon."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.documented import blocks
from tests.support.ports import unused_port

#: Where the settings are that this project tells its users.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "proxies.md"
#: The address of the daemon in the page, which is another one here.
HOST = "127.0.0.1:54322"

#: What makes a program of Debian run below a directory, on loopback, with the settings of the page or none.
NGINX = """\
daemon off;
user root;
pid {directory}/pid;
error_log {directory}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {settings}
}}
"""
NGINX_DEFAULT = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{origin}; }} }}"

HAPROXY = """\
{settings}
frontend front
    bind 127.0.0.1:{port}
    default_backend images
backend images
    server host 127.0.0.1:{origin}
"""
#: Of Debian's haproxy.cfg.
HAPROXY_DEFAULT = (
    "defaults\n    mode http\n    timeout connect 5000\n    timeout client 50000\n    timeout server 50000\n"
)

SQUID = """\
http_port 127.0.0.1:{port} accel defaultsite=localhost
cache_peer 127.0.0.1 parent {origin} 0 no-query originserver
http_access allow all
pid_filename none
shutdown_lifetime 1 second
access_log none
cache_log {directory}/log
coredump_dir /tmp
{settings}
"""

H2O = """\
user: root
pid-file: {directory}/pid
error-log: {directory}/log
temp-buffer-path: {directory}
{settings}
hosts:
  default:
    listen: {{host: 127.0.0.1, port: {port}}}
    paths:
      /: {{proxy.reverse.url: "http://127.0.0.1:{origin}"}}
"""


@dataclass(frozen=True)
class Proxy:
    """One proxy with one kind of settings."""

    program: str
    tuned: bool
    port: int

    @property
    def name(self) -> str:
        return f"{self.program}, {'this page' if self.tuned else 'default'}"

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def image(self, ticket: str) -> str:
        return f"{self.url}/images/{ticket}"


def _settings(program: str) -> str:
    """Return the settings of the page for a program."""
    return next(text for name, text in blocks(PAGE) if name == program)


def _nginx(directory: Path, port: int, origin: int, tuned: bool) -> list[str]:
    settings = NGINX_DEFAULT.format(port=port, origin=origin)
    if tuned:  # in the clear, on both sides
        settings = _settings("nginx").replace(f"https://{HOST}", f"http://127.0.0.1:{origin}")
        settings = settings.replace(f"server {HOST}", f"server 127.0.0.1:{origin}").replace("https://", "http://")
        lines = [line for line in settings.splitlines() if "ssl" not in line or "listen" in line]
        settings = "\n".join(lines).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    return ["nginx", "-c", _write(directory / "nginx.conf", NGINX, settings, directory, port, origin)]


def _haproxy(directory: Path, port: int, origin: int, tuned: bool) -> list[str]:
    settings = _settings("haproxy") if tuned else HAPROXY_DEFAULT
    return ["haproxy", "-f", _write(directory / "haproxy.cfg", HAPROXY, settings, directory, port, origin)]


def _varnish(directory: Path, port: int, origin: int, tuned: bool) -> list[str]:
    command = [
        "varnishd",
        "-F",
        "-n",
        str(directory / "work"),
        "-a",
        f"127.0.0.1:{port}",
        "-s",
        "malloc,64m",
        "-T",
        "none",
    ]
    if not tuned:
        return [*command, "-b", f"127.0.0.1:{origin}"]
    vcl, parameters = _settings("varnish"), _settings("varnishd").split()
    host, _, number = HOST.partition(":")
    vcl = vcl.replace(f'"{host}"', '"127.0.0.1"').replace(f'"{number}"', f'"{origin}"')
    path = directory / "images.vcl"
    path.write_text(vcl)
    return [*command, "-f", str(path), *parameters[1:]]


def _squid(directory: Path, port: int, origin: int, tuned: bool) -> list[str]:
    settings = _settings("squid") if tuned else ""
    name = f"squid{port}"  # of its memory: two of one name would share it
    return ["squid", "-N", "-n", name, "-f", _write(directory / "squid.conf", SQUID, settings, directory, port, origin)]


def _h2o(directory: Path, port: int, origin: int, tuned: bool) -> list[str]:
    settings = _settings("h2o") if tuned else ""
    return ["h2o", "-c", _write(directory / "h2o.conf", H2O, settings, directory, port, origin)]


def _write(path: Path, template: str, settings: str, directory: Path, port: int, origin: int) -> str:
    path.write_text(template.format(settings=settings, directory=directory, port=port, origin=origin))
    return str(path)


PROGRAMS: Mapping[str, Callable[[Path, int, int, bool], list[str]]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "varnish": _varnish,
    "squid": _squid,
    "h2o": _h2o,
}


@contextlib.contextmanager
def running(directory: Path, origin: int) -> Iterator[list[Proxy]]:
    """Run all of them before the daemon on the port `origin`."""
    processes, proxies = [], []
    for place in (directory, directory.parent):
        place.chmod(0o755)  # Varnish reads its file as a user of its own
    try:
        for program, command in PROGRAMS.items():
            for tuned in (False, True):
                port = unused_port()
                place = directory / f"{program}-{'tuned' if tuned else 'default'}"
                place.mkdir()
                place.chmod(0o777)  # Squid writes its log as a user of its own, too
                with (place / "out").open("wb") as out:
                    processes.append(subprocess.Popen(command(place, port, origin, tuned), stdout=out, stderr=out))
                proxies.append(Proxy(program, tuned, port))
        for proxy in proxies:
            _wait_for(proxy.port, directory)
        yield proxies
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, directory: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            if time.monotonic() > deadline:
                told = "\n".join(path.read_text() for path in directory.glob("*/out"))
                raise AssertionError(f"nothing listens on port {port}: {told}") from None
            time.sleep(0.1)
        else:
            return
