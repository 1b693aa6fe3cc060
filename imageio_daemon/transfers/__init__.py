# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

ticket: what a ticket may say. permission: whether it is valid now. transfer: what runs. image: opening and closing.
report: what it tells of itself. end, ending: what happens after a cancellation.

The event loops of the process share transfers. These are the rules for all objects that loops share (transfers,
backends, the engine, buffers, limits, hashing):

- A plain lock guards state that changes in several steps. It is held for a few steps only: not during a wait, a
  callback of a peer or a call of storage. A single read, or a single change of a set or dict, needs no lock, because
  the GIL makes it atomic.
- A shared object has no asyncio primitives. Code that waits for another loop waits for a concurrent future, or for a
  future of its own loop that the other loop sets with call_soon_threadsafe().
- The objects of a request (its operation, buffers, connection and their timers) are used on the loop that has received
  the request. Other threads may only cancel them and read their counters.
- A loop may see late that another loop has cancelled a transfer, or has released its image after the ticket's expiry.
  begin() and add_lane() check this. All code that uses the image holds an operation or a lane, and the image is closed
  only when there is none; Backend.info and Backend.generation need neither. Code that got its backend before begin()
  passes the backend to it. Other code calls begin() first, and backend() then.
"""
