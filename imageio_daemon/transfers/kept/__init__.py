# SPDX-License-Identifier: Apache-2.0
"""Tickets that outlive the process. kept_tickets: those of a store. ticket_files: their files. kept_ticket: one file."""
