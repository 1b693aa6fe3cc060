# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that look at a running daemon from outside."""

import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import shared
from tests.support.daemon import PROGRAM, STATE, Certificates, Daemon, MakeDaemon, Section
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, make_image
from tests.support.manager import Manager
from tests.support.places import Place, Setting
from tests.support.polling import eventually
from tests.support.services import Connect, Service

pytest_plugins = ["tests.support.alone", "tests.support.answered", "tests.support.realstorage"]


def pytest_configure(config: pytest.Config) -> None:
    # Its successor, a hook, would hold for all tests.
    config.addinivalue_line(
        "filterwarnings", "ignore:Overriding the .event_loop_policy:pytest.PytestDeprecationWarning"
    )
    # What a script starts in the background ignores Ctrl-C, and so would the programs under test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-cases", action="store_true", help="run the first case of each test only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("first_cases"):
        # In the order of collection: the first of each key is put down last.
        first = {_test_and_way(item): item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if first[_test_and_way(item)] is not item])
        items[:] = [item for item in items if first[_test_and_way(item)] is item]


def _test_and_way(item: pytest.Item) -> tuple[object, ...]:
    """Return what cases have in common that differ in data only, and not in what has the image."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return (item.nodeid.partition("[")[0], *(params.get(name) for name in ("make_world", "file_world", "backend")))


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let clients keep their states in a directory of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("states")))
        yield


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what was captured encodable: a lone surrogate in a log line ends pytest-xdist."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """Return the daemon for all tests that do not need their own."""
    with shared.start(certificates) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def other_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """The daemon that has the images behind tickets of https urls."""
    with Daemon(certificates, {"daemon": {"state_dir": STATE}}) as daemon:
        yield daemon


@pytest.fixture
def daemon(request: pytest.FixtureRequest, shared_daemon: Daemon) -> Iterator[Daemon]:
    """The shared daemon; what it logs during the test is checked after it."""
    assert shared_daemon.running, f"a test before this one ended the daemon:\n{shared_daemon.log.text()[-5000:]}"
    start = shared_daemon.log.end()
    yield shared_daemon
    shared_daemon.check_log()
    if request.node.get_closest_marker("unopened") is None:
        assert shared_daemon.log.find("lane missed", start=start) is None, "C did not see each request that is for it"


@pytest.fixture
def make_daemon(certificates: Certificates) -> Iterator[MakeDaemon]:
    """Start a daemon with sections of configuration of its own: make_daemon(daemon={"max_connections": 1})."""
    with ExitStack() as cleanup:

        def make(
            *,
            arguments: tuple[str, ...] = (),
            program: str = PROGRAM,
            manager: Manager | None = None,
            **config: Section,
        ) -> Daemon:
            made = Daemon(certificates, config, arguments=arguments, program=program, manager=manager)
            return cleanup.enter_context(made)

        yield make


@pytest.fixture(params=["tls", "unix"])
def service(request: pytest.FixtureRequest, daemon: Daemon) -> Service:
    """Run the test through each service that serves images."""
    return Service(daemon, request.param)


@pytest.fixture(params=["tls", "unix"])
def service_name(request: pytest.FixtureRequest) -> str:
    """Run the test through each service that serves images, of a daemon that the test makes."""
    name: str = request.param
    return name


@pytest.fixture
def client(service: Service) -> Iterator[Connection]:
    """A new connection to the service."""
    with service.connect() as connection:
        yield connection


@pytest.fixture
def image_kind() -> type[Place]:
    """What new images are. The tests of the images API have others."""
    return Place


@pytest.fixture
def new_image(request: pytest.FixtureRequest, tmp_path: Path, daemon: Daemon, image_kind: type[Place]) -> MakeImage:
    """Make images with tickets: new_image(b"content", ops=["read"]), new_image(size=4096), new_image(path=device)."""

    def make(*arguments: Any, **fields: Any) -> Image:
        cleanup = ExitStack()
        # Before the storage goes that was there when the image was made: it must not be open then.
        request.node.addfinalizer(cleanup.close)
        setting = Setting(daemon, lambda: request.getfixturevalue("other_daemon"), cleanup)
        image = make_image(daemon, tmp_path, lambda raw, fields: image_kind.make(raw, fields, setting))(
            *arguments, **fields
        )
        cleanup.callback(daemon.control, "DELETE", f"/tickets/{image.ticket}")
        if daemon.eager and request.node.get_closest_marker("unopened") is None:
            _open(daemon, image)
        return image

    return make


def _open(daemon: Daemon, image: Image) -> None:
    """Have the image opened, without which C serves nothing; nobody is connected to it then."""
    with daemon.connect("unix") as connection:
        connection.request("OPTIONS", image.url)
    eventually(lambda: daemon.status(image.ticket)["connections"] == 0, "the connection is gone")


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    """A writable image of 1 MiB without two equal blocks."""
    return new_image()


@pytest.fixture
def connect(service: Service) -> Iterator[Connect]:
    """Open connections to the service, closed after the test: connect()."""
    with ExitStack() as cleanup:
        yield lambda: cleanup.enter_context(service.connect())
