# SPDX-License-Identifier: Apache-2.0
"""What a daemon does apart from serving: it becomes its user, reloads, watches, and tells how it is.

It tells the service manager, those who ask for its health, and Prometheus.
"""
