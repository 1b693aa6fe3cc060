# SPDX-License-Identifier: Apache-2.0
"""What a daemon does apart from serving: it becomes its user, reloads, watches, and informs the service manager."""
