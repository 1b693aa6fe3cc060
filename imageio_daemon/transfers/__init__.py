# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

`ticket` and `keys` have what a ticket may say, `transfer` what runs. `active` has which transfers may go on,
`rate_limits` how fast, `durable_records` what is known to be on stable storage. Tickets that outlive the process are in
`kept_tickets`.

Use everything here on the event loop. Then the code between two `await` is one step, in which no other code runs. While
code waits, a transfer may be cancelled, or its image released after the ticket's expiry. track() and add_lane() check
this. All code that uses the image holds an operation or a lane, and the image is closed only when there is none. Only
Backend.info and Backend.generation need neither. Code calls track() first, then backend().

Threads write durable records and kept tickets; see durable_records, kept_tickets and runtime/file_writer.
"""
