# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

ticket: what a ticket may say. permission: whether it is valid now. transfer: what runs. transfer_image: opening and
closing. status: what the control service shows. end, canceled: what happens after a cancellation. kept_tickets,
ticket_files, kept_ticket: tickets that outlive the process: those of a store, their files, one file.

Everything here is used on the event loop, so what is done between two `await` is one step for all others. While code
waits, a transfer may be cancelled, or its image released after the ticket's expiry. begin() and add_lane() check this.
All code that uses the image holds an operation or a lane, and the image is closed only when there is none;
Backend.info and Backend.generation need neither. Code that got its backend before begin() passes the backend to it.
Other code calls begin() first, and backend() then.

Durable records and kept tickets are written by threads; see durable_records and service/file_writer.
"""
