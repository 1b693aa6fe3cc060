# SPDX-License-Identifier: Apache-2.0
"""The work of a daemon apart from serving: become its user, reload, check tickets and storage, and report its state.

It reports to the service manager, to clients that ask for its health, and to Prometheus.
"""
