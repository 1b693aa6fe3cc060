# SPDX-License-Identifier: Apache-2.0
"""The features of a running daemon that may be configured and not in force, and which object knows of each."""

from ..net.service_sockets import ServiceSockets
from ..net.tls_contexts import ServerTls
from ..operations.opener import Opener
from ..runtime.audit_log import AuditLog
from ..runtime.degraded import Degraded, Feature
from ..runtime.state_watch import StateWatch
from ..transfers.durable_records import DurableRecords
from ..transfers.store import TransferStore
from .reloading import Reloading
from .supervision import Supervision


def watch_state(
    degraded: Degraded, state: StateWatch, store: TransferStore, events: AuditLog, records: DurableRecords
) -> None:
    """Watch the features that keep state beyond the end of the process."""
    degraded.watch(Feature.STATE_DIR, state.why)
    degraded.watch(Feature.TICKETS, store.kept_tickets.why_not_kept)
    degraded.watch(Feature.EVENTS, events.why_not_kept)
    degraded.watch(Feature.DURABLE, records.why_not_kept)


def watch_service(
    degraded: Degraded,
    sockets: ServiceSockets,
    tls: ServerTls | None,
    opener: Opener,
    supervision: Supervision,
    reloading: Reloading,
) -> None:
    """Watch the features that depend on the host, its files and other programs. Without TLS, `tls` is None."""
    if tls is not None:
        degraded.watch(Feature.CERTIFICATE, tls.why_not)
    degraded.watch(Feature.CONFIGURATION, reloading.why_not)
    degraded.watch(Feature.SOCKETS, sockets.why_not)
    degraded.watch(Feature.SERVICE_MANAGER, supervision.why_not)
    degraded.watch(Feature.FORMATS, opener.why_no_formats)
    degraded.watch(Feature.CEPH, opener.why_no_ceph)
