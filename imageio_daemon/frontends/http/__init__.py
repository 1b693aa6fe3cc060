# SPDX-License-Identifier: Apache-2.0
"""The images API and the control API over HTTP.

`server` makes a connection for each client, and `connection` reads from it. `sequence` passes on each request: by
`handover` to a lane of C, or to aiohttp, whose handlers are in `resources`. `errors` has the answer to each exception.
"""
