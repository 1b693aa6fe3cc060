# SPDX-License-Identifier: Apache-2.0
"""The command imageioctl: what an administrator asks of the daemon on this host, through its control socket."""
