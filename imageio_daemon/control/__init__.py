# SPDX-License-Identifier: Apache-2.0
"""The command imageioctl, with which an administrator manages the daemon on this host, by its control socket."""
