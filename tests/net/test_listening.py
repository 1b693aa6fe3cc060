# SPDX-License-Identifier: Apache-2.0
import errno
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import ConfigError
from imageio_daemon.net.listening import MAX_UNIX_ADDRESS, listen_localhost, listen_tcp, listen_unix, remove_unix


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_any_address_takes_both_ip_versions(address: str) -> None:
    with listen_tcp("::", 0) as sock:
        socket.create_connection((address, sock.getsockname()[1]), timeout=5).close()


def test_port_in_use_is_an_error_of_configuration() -> None:
    with listen_tcp("127.0.0.1", 0) as sock, pytest.raises(ConfigError, match="cannot listen"):
        listen_tcp("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize("host", ["no such host", "a" * 70 + ".invalid"])
def test_host_that_does_not_resolve_is_an_error_of_configuration(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot resolve"):
        listen_tcp(host, 0)


def test_sockets_are_closed_on_exec() -> None:
    with listen_tcp("127.0.0.1", 0) as sock:
        assert not sock.get_inheritable()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666, 0o777])
def test_path_socket_has_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "sock"
    with listen_unix(str(path), mode):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_mode_of_a_path_socket_is_not_given_to_what_a_link_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write into the directory puts a link in the place of the socket as soon as it is there."""
    victim = tmp_path / "victim"
    victim.touch(0o600)

    class Raced(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            os.unlink(address)
            os.symlink(victim, address)

    monkeypatch.setattr(socket, "socket", Raced)
    listen_unix(str(tmp_path / "sock"), 0o666).close()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_making_a_path_socket_leaves_the_umask_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        listen_unix(str(tmp_path / "sock"), 0o666).close()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_stale_path_socket_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    listen_unix(path, 0o600).close()
    with listen_unix(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_path_socket_of_a_living_process_is_not_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with listen_unix(path, 0o600), pytest.raises(ConfigError, match="another process"):
        listen_unix(path, 0o600)


def test_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        listen_unix(str(path), 0o600)
    assert path.read_text() == "precious"


def test_directory_that_does_not_exist_is_an_error_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        listen_unix(str(tmp_path / "none" / "sock"), 0o600)


def test_address_that_is_too_long_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigError, match="longer"):
        listen_unix("/" + "a" * MAX_UNIX_ADDRESS, 0o600)


def test_abstract_name_is_listened_on() -> None:
    name = f"\0test-{secrets.token_hex(8)}"
    with listen_unix(name, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(name)


def test_removing_takes_the_path_away(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    listen_unix(path, 0o600).close()
    remove_unix(path)
    assert not os.path.exists(path)


def test_removing_an_abstract_name_or_a_missing_path_does_nothing(tmp_path: Path) -> None:
    remove_unix("\0gone")
    remove_unix(str(tmp_path / "gone"))


def test_localhost_is_the_same_port_of_both_ip_versions() -> None:
    first, second = listen_localhost(0)
    with first, second:
        assert first.getsockname()[:2] == ("127.0.0.1", second.getsockname()[1])
        assert second.getsockname()[0] == "::1"


def test_localhost_without_ip_version_6_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ipv6(host: str, port: int) -> socket.socket:
        if host == "::1":
            raise ConfigError("no") from OSError(errno.EADDRNOTAVAIL, "no such address")
        return listen_tcp(host, port)

    monkeypatch.setattr("imageio_daemon.net.listening.listen_tcp", no_ipv6)
    [only] = listen_localhost(0)
    only.close()


def test_localhost_port_in_use_leaves_nothing_open() -> None:
    with listen_tcp("::1", 0) as taken, pytest.raises(ConfigError, match="cannot listen"):
        listen_localhost(taken.getsockname()[1])
