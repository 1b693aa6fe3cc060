# SPDX-License-Identifier: Apache-2.0
"""The manual page imageio-daemon.conf(5), made of the sections.

`python -m imageio_daemon.config.manual` prints docs/imageio-daemon.conf.5.
"""

import dataclasses
import inspect
import sys

from .config import SECTIONS
from .options import describe

_HEAD = r""".\" SPDX-License-Identifier: Apache-2.0
.\" Made by python -m imageio_daemon.config.manual
.TH IMAGEIO-DAEMON.CONF 5 "" imageio-daemon "File Formats"
.SH NAME
imageio-daemon.conf \- configuration of imageio-daemon
.SH SYNOPSIS
.I /etc/imageio-daemon/conf.d/*.conf
.SH DESCRIPTION
The files are read in the order of their names, and a later value replaces an earlier one. They consist of sections in
brackets and of lines
.IR "option = value" .
An unknown section or option, or an invalid value, stops the start; options of ovirt\-imageio that have no effect here
are named in a warning.
.B imageio\-daemon \-\-check\-config
tells what is wrong.
.PP
A reload of the service changes [log] level, [daemon] max_tickets, max_total_connections and shutdown_timeout, [nbd]
max_connections, and [limits]. All other options change at the next start.
"""
_TAIL = r""".SH FILES
.TP
.I /etc/imageio-daemon/conf.d/*.conf
The configuration.
.SH SEE ALSO
.BR imageio\-daemon (8),
.BR imageioctl (1)
"""


def page() -> str:
    """Return the page in the man macros (groff_man(7)), with the unit, default and reason of each option."""
    return _HEAD + "".join(_section(name) for name in SECTIONS) + _TAIL


def _section(name: str) -> str:
    lines = [f".SH [{name}]", _text(inspect.getdoc(SECTIONS[name]) or "")]
    for option in dataclasses.fields(SECTIONS[name]):
        described = describe(option)
        default = described.write(option.default) or "empty"
        lines += [".TP", rf"\fB{_text(option.name)}\fR", _text(described.reason)]
        lines += [_text(f"Value: {described.expected}. Default: {default}.")]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Escape what roff would interpret: backslashes, hyphens, and requests at the beginning of a line."""
    escaped = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(page())
