# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

ticket, keys: what a ticket may say. transfer: what runs, of its parts. active: which transfers may go on. rate_limits:
how fast. durable_records: what is known to be on stable storage. kept: tickets that outlive the process.

Everything here is used on the event loop, so what is done between two `await` is one step for all others. While code
waits, a transfer may be cancelled, or its image released after the ticket's expiry. begin() and add_lane() check this.
All code that uses the image holds an operation or a lane, and the image is closed only when there is none;
Backend.info and Backend.generation need neither. Code that got its backend before begin() passes the backend to it.
Other code calls begin() first, and backend() then.

Durable records and kept tickets are written by threads; see durable_records, kept and runtime/file_writer.
"""
