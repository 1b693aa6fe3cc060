# SPDX-License-Identifier: Apache-2.0
"""Cross-origin requests (the Fetch standard): a page of a management UI uploads from a browser.

Any origin may: the ticket in the path is the authority, no cookie is.
"""

from collections.abc import Mapping

#: How long a browser may remember the answer to a preflight, in seconds: a day.
MAX_AGE = "86400"
#: Fields of answers that a page may read, besides those that the standard allows anyway: what a client of images needs.
EXPOSED = "Accept-Ranges, Allow, Content-Disposition, Content-Length, Content-Range, Date, ETag"


def cors_headers(headers: Mapping[str, str], methods: str) -> dict[str, str]:
    """Return what answers a request's CORS headers; nothing when it has none."""
    answer = {}
    if "origin" in headers:
        answer["Access-Control-Allow-Origin"] = "*"
        answer["Access-Control-Expose-Headers"] = EXPOSED
    if "access-control-request-headers" in headers:
        answer["Access-Control-Allow-Headers"] = "*"
    if "access-control-request-method" in headers:
        answer["Access-Control-Allow-Methods"] = methods
    if answer:
        answer["Access-Control-Max-Age"] = MAX_AGE
    return answer
