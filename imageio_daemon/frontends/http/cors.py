# SPDX-License-Identifier: Apache-2.0
"""Cross-origin requests (the Fetch standard, "CORS protocol"), with which a page of a management UI transfers images.

Every origin is allowed: the ticket id in the path is the authority, and cookies have no effect.
"""

from collections.abc import Mapping

#: Seconds for which a browser may cache the answer to a preflight request: one day.
MAX_AGE = "86400"
#: Fields that a client of images needs. A page may read them in addition to those that the standard always allows.
EXPOSED = (
    "Accept-Ranges, Allow, Content-Disposition, Content-Length, Content-Range, Date, ETag, Retry-After, X-Error-Code"
)


def cors_headers(headers: Mapping[str, str], methods: str) -> dict[str, str]:
    """Return the fields that answer the CORS fields of a request, if it has any.

    `headers` are the fields of the request, by lower-case name. `methods` are those that a page may use, separated by
    commas.
    """
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
