# SPDX-License-Identifier: Apache-2.0
"""Tickets that outlive the process. kept_tickets: all of a store. ticket_files: their files. kept_ticket: one file."""
