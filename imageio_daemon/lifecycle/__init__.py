# SPDX-License-Identifier: Apache-2.0
"""What a running daemon does beside serving: it becomes its user, reloads, watches, and tells the service manager."""
