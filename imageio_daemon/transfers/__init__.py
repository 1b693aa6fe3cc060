# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

`ticket` and `keys` validate tickets, and `transfer` has the tickets in use. `active` decides which transfers may go on.
`rate_limits` limits their rates. `durable_records` records the ranges on stable storage. Tickets outlive the process in
`kept_tickets`.

Use everything here on the event loop. Then the code between two `await` is one step, in which no other code runs. While
code waits, a transfer may be cancelled, or its image released after the ticket's expiry. track() and add_lane() check
this. All code that uses the image holds an operation or a lane, and the image is closed only when there is none. Only
Backend.info and Backend.generation need neither. Code calls track() first, then backend().

Threads write durable records and kept tickets; see durable_records, kept_tickets and runtime/file_writer.
"""
