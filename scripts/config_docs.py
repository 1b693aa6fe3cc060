# SPDX-License-Identifier: Apache-2.0
"""Print a file that explains all options of the configuration.

The argument `conf` prints conf/daemon.conf, `man` prints docs/imageio-daemon.conf.5.
"""

import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator

from imageio_daemon.config.config import SECTIONS
from imageio_daemon.config.options import describe

SAMPLE_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
#
# Every option of imageio-daemon, with its default.
#
# Put the options that you change into a file of your own, /etc/imageio-daemon/conf.d/NAME.conf.
# The daemon reads the files in the order of their names, and a later value replaces an earlier one.
# An unknown name or an invalid value stops the start. To check: imageio-daemon --check-config
"""

MANUAL_HEAD = r""".\" SPDX-License-Identifier: Apache-2.0
.\" Made by scripts/config_docs.py
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
MANUAL_TAIL = r""".SH FILES
.TP
.I /etc/imageio-daemon/conf.d/*.conf
The configuration.
.SH SEE ALSO
.BR imageio\-daemon (8),
.BR imageioctl (1)
"""


def manual() -> str:
    """Return the page in the man macros (groff_man(7)), with the unit, default and reason of each option."""
    return MANUAL_HEAD + "".join(_manual_section(name) for name in SECTIONS) + MANUAL_TAIL


def _manual_section(name: str) -> str:
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


def sample() -> str:
    """Return a configuration file with every option commented out, with its unit, default and reason."""
    return "\n".join([SAMPLE_HEAD, *(_sample_section(name) for name in SECTIONS)])


def _sample_section(name: str) -> str:
    lines = [*_comment(inspect.getdoc(SECTIONS[name]) or ""), f"[{name}]", ""]
    for option in dataclasses.fields(SECTIONS[name]):
        described = describe(option)
        default = described.write(option.default)
        lines += [*_comment(described.reason), *_comment(f"Value: {described.expected}.")]
        lines += [f"#{option.name} = {default}".rstrip(), ""]
    return "\n".join(lines)


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, 100))


if __name__ == "__main__":
    sys.stdout.write({"conf": sample, "man": manual}[sys.argv[1]]())
