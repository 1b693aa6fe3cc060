# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

`ticket` has what a ticket may say, and `permission` whether it is valid now. `transfer` has what runs, `transfer_image`
opens and closes the image, and `status` is what the control service shows. `end` and `canceled` are about what happens
after a cancel. Tickets that outlive the process are in `kept_tickets` (those of a store), `ticket_files` (their files)
and `kept_ticket` (one file).

Use everything here on the event loop. Then the code between two `await` is one step, in which no other code runs. While
code waits, a transfer may be cancelled, or its image released after the ticket's expiry. begin() and add_lane() check
this. All code that uses the image holds an operation or a lane, and the image is closed only when there is none. Only
Backend.info and Backend.generation need neither. Code that got its backend before begin() passes the backend to it.
Other code calls begin() first, then backend().

Threads write durable records and kept tickets; see durable_records and runtime/file_writer.
"""
