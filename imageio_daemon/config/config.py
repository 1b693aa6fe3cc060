# SPDX-License-Identifier: Apache-2.0
"""The configuration: all sections together, and the constraints between their options."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .backends import BackendFile, BackendHttp, BackendNbd, BackendRbd
from .options import describe
from .sections import ControlSection, DaemonSection, LimitsSection, LogSection
from .services import LocalSection, MetricsSection, NbdSection, RemoteSection, TlsSection, UiSection

#: Values of [nbd] host on which only clients of this host can connect.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Config:
    """All sections."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    tls: TlsSection = field(default_factory=TlsSection)
    remote: RemoteSection = field(default_factory=RemoteSection)
    local: LocalSection = field(default_factory=LocalSection)
    nbd: NbdSection = field(default_factory=NbdSection)
    ui: UiSection = field(default_factory=UiSection)
    control: ControlSection = field(default_factory=ControlSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    backend_file: BackendFile = field(default_factory=BackendFile)
    backend_nbd: BackendNbd = field(default_factory=BackendNbd)
    backend_http: BackendHttp = field(default_factory=BackendHttp)
    backend_rbd: BackendRbd = field(default_factory=BackendRbd)
    log: LogSection = field(default_factory=LogSection)


#: The class of each section, by its name in files.
SECTIONS: dict[str, type[Any]] = {name: type(section) for name, section in vars(Config()).items()}


class Conflict(NamedTuple):
    """An option whose value violates a constraint by another option. `expected` tells a valid value, and why."""

    section: str
    name: str
    expected: str


def conflicts(config: Config) -> Iterator[Conflict]:
    """Yield the violated constraints between options."""
    tls, control = config.tls, config.control
    if tls.enable and not tls.cert_file:
        yield Conflict("tls", "cert_file", "the path of a PEM file, for [tls] enable is true")
    if tls.enable and not tls.key_file:
        yield Conflict("tls", "key_file", "the path of a PEM file, for [tls] enable is true")
    if tls.client_auth != "none" and not tls.enable:
        yield Conflict("tls", "client_auth", "none, for [tls] enable is false")
    if tls.client_auth != "none" and not tls.ca_file:
        yield Conflict("tls", "ca_file", f"the path of a PEM file, for [tls] client_auth is {tls.client_auth}")
    if control.enable and control.transport == "tcp" and control.port < 0:
        yield Conflict("control", "port", "0 to 65535, for [control] transport is tcp")
    yield from _nbd_conflicts(config)


def _nbd_conflicts(config: Config) -> Iterator[Conflict]:
    nbd = config.nbd
    if not nbd.enable:
        return
    if nbd.port < 0 and not nbd.socket:
        yield Conflict("nbd", "socket", "an address, for [nbd] port is -1")
    if nbd.port >= 0 and nbd.tls != "off" and not config.tls.enable:
        yield Conflict("nbd", "tls", "off, for [tls] enable is false")
    if nbd.port >= 0 and nbd.tls != "required" and nbd.host not in LOOPBACK:
        yield Conflict("nbd", "tls", f"required, unless [nbd] host is one of {', '.join(LOOPBACK)}")
    if nbd.list and not nbd.socket:
        yield Conflict("nbd", "list", "false, for [nbd] socket is empty")
    if nbd.list and nbd.mode & 0o006:
        yield Conflict("nbd", "mode", "a mode that lets no others in, for [nbd] list is true")


def show(config: Config) -> dict[str, dict[str, object]]:
    """Return all options by section, ready for JSON."""
    return {
        name: {
            option.name: describe(option).show(getattr(getattr(config, name), option.name))
            for option in dataclasses.fields(section)
        }
        for name, section in SECTIONS.items()
    }
