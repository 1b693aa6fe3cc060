# SPDX-License-Identifier: Apache-2.0
"""A daemon whose images all are on another daemon, for the tests of images that know nothing of it."""

import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import Certificates, Daemon


class ProxiedDaemon(Daemon):
    """Install each ticket of a file on a second daemon, and here one that leads there."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(certificates, {"backend_http": {"ca_file": certificates.cafile}})
        self._behind = Daemon(certificates)

    def __enter__(self) -> Self:
        self._behind.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._behind.__exit__(kind, error, trace)

    def put_ticket(self, fields: Mapping[str, Any]) -> str:
        """Install a ticket on each."""
        inner = {**fields, "uuid": secrets.token_hex(16), "timeout": 3600}
        self.hide(inner["uuid"])
        self._behind.put_ticket(inner)
        return super().put_ticket({**fields, "url": self._behind.url(inner["uuid"])})
