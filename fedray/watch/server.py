"""A server of one local page that follows the runs under a directory.

It only answers GET requests of this machine, and keeps no state, so it can be restarted freely. It
shows the content of files: the listing, pages called report.html, and comparisons of trained runs
in the listing. The policy of a page (Content-Security-Policy) limits which resources it may load.
Pages of runs may come from a stranger, so they are shown in a sandbox that cannot send requests to
this server.
"""

import contextlib
import json
import os
import secrets
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fedray.base.errors import FedrayError, InputError
from fedray.base.extras import missing_extra
from fedray.base.regular_file import read_regular_file
from fedray.report.page import render_watch
from fedray.trace.schema import REPORT_FILE
from fedray.watch.entries import Entry, Listing, Runs
from fedray.watch.shown import shown_listing

LOOPBACK = "127.0.0.1"
MOST_REPORT_BYTES = 1 << 30
LEAST_AGE = 0.5
"""Seconds for which a listing is reused, so that several tabs cost no more than one."""
_NO_NETWORK = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; img-src data: blob:; "
_REPORT_POLICY = (
    f"{_NO_NETWORK}script-src 'unsafe-inline'; style-src 'unsafe-inline'; form-action 'none'; "
    "sandbox allow-scripts allow-downloads"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WatchServer(socketserver.ThreadingTCPServer):
    """Serves the page of a directory's runs on this machine.

    Args:
        runs: the runs.
        port: port to listen on; 0 for a free one.

    Raises:
        InputError: the port is taken, or may not be used.
    """

    daemon_threads = True
    # A new server can then take the port of the one before, and open pages continue.
    allow_reuse_address = True

    def __init__(self, runs: Runs, port: int = 0) -> None:
        self.runs = runs
        self._lock = threading.Lock()
        self._listing: Listing | None = None
        self._listed = 0.0
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InputError.of(
                "port",
                port,
                f"cannot be listened on ({error.strerror or error})",
                "name another, or 0 for a free one",
            ) from None

    @property
    def server_port(self) -> int:
        """The port of the server."""
        return self.server_address[1]

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def listing(self) -> Listing:
        """The listing, at most half a second old."""
        with self._lock:
            if self._listing is None or time.monotonic() - self._listed > LEAST_AGE:
                self._listing = self.runs.list()
                # The age counts from the end of the search, which may itself have taken long.
                self._listed = time.monotonic()
            return self._listing

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stays silent: a browser may leave in the middle of an answer."""


class _Refused(Exception):
    """An error response: its status and a line."""

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "fedray", ""
    timeout = 30.0

    def do_GET(self) -> None:
        try:
            self._check_sender()
            place = urlsplit(self.path)
            if place.path == "/":
                self._page()
            elif place.path == "/state.json":
                self._check_same_site()
                document = shown_listing(self.server.listing())
                self._send(json.dumps(document, allow_nan=False).encode(), "application/json")
            elif place.path == "/compare":
                self._check_same_site()
                page = self._compared(parse_qs(place.query).get("run", []))
                self._send(page.encode(), "text/html", _REPORT_POLICY)
            elif place.path.startswith("/report/"):
                # File names need not be UTF-8.
                name = unquote(place.path.removeprefix("/report/"), errors="surrogateescape")
                self._send(self._report(name), "text/html", _REPORT_POLICY)
            else:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here; go to /")
        except _Refused as refused:
            self._send(f"{refused}\n".encode(), "text/plain", status=refused.status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers requests that http.server refuses, such as other methods, with one line."""
        is_method = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if is_method else HTTPStatus(code)
        line = "only GET is answered here" if is_method else status.phrase
        self._send(f"{line}\n".encode(), "text/plain", status=status)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: a page asks every other second."""

    def _check_sender(self) -> None:
        """Refuses host names that another site may have pointed at this machine (DNS rebinding)."""
        own = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        # A proxy might read a request with two hosts differently.
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in own:
            raise _Refused(HTTPStatus.FORBIDDEN, f"go to {self.server.address}")

    def _check_same_site(self) -> None:
        """Refuses requests from a page of another site, or from a sandboxed one."""
        # Browsers always state where a request comes from, and other programs do not.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise _Refused(HTTPStatus.FORBIDDEN, f"go to {self.server.address}")

    def _page(self) -> None:
        # Only scripts that carry this number may run, so that text in the page never does.
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"{_NO_NETWORK}script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; form-action 'self'"
        )
        page = render_watch(shown_listing(self.server.listing()), nonce)
        self._send(page.encode(), "text/html", policy)

    def _report(self, name: str) -> bytes:
        """Returns the content of a page below the directory."""
        directory = self.server.runs.directory
        path = inside(directory, name)
        # Only pages are served, no other file below the directory.
        if path is not None and path.name == REPORT_FILE:
            with contextlib.suppress(OSError):
                return read_regular_file(path, MOST_REPORT_BYTES, inside=directory)
        raise _Refused(HTTPStatus.NOT_FOUND, f"there is no such {REPORT_FILE} in the directory")

    def _compared(self, models: list[str]) -> str:
        """Returns the page of a comparison of trained runs, as `fedray compare` writes it."""
        listing = self.server.listing()
        listed = {entry.model: entry for entry in listing.entries if entry.model}
        directory = self.server.runs.directory
        # Only listed runs are opened, whatever a request names.
        paths = [inside(directory, model) for model in models if model in listed]
        if len(paths) < len(models) or None in paths:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such trained run in the directory")
        try:
            from fedray.studies.compare import compare_runs
            from fedray.studies.compare_page import comparison_page

            trace = _trace_of(listed[models[0]], listing) if models else None
            given = None if trace is None else directory / trace
            return comparison_page(compare_runs([path for path in paths if path], given))
        except FedrayError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
        # Comparisons need an extra; the answer names it if it is missing.
        except ModuleNotFoundError as error:
            lacks = missing_extra(error)
            if lacks is None:
                raise
            raise _Refused(HTTPStatus.NOT_IMPLEMENTED, str(lacks)) from None

    def _send(
        self,
        content: bytes,
        kind: str,
        policy: str = f"{_NO_NETWORK}form-action 'none'; sandbox",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        # HTTP demands that such an answer lists the permitted methods.
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(content)


def inside(directory: Path, name: str) -> Path | None:
    """Returns the real path of a name below a directory, or None if it is not below it.

    Args:
        directory: directory that may be shown.
        name: relative, with slashes; links in it are followed.
    """
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or name.startswith("/") or ".." in parts:
        return None
    # Links are followed before the test, because one may lead out of the directory.
    real = Path(os.path.realpath(directory.joinpath(*parts)))
    is_below = real.is_relative_to(os.path.realpath(directory))
    return real if is_below else None


def _trace_of(entry: Entry, listing: Listing) -> str | None:
    """Returns the path of the trace that a run was trained on, if it is listed."""
    digest = entry.trace_digest
    of_traces = (each for each in listing.entries if each.kind == "run" and not each.resume)
    return next(
        (
            each.path
            for each in of_traces
            if each.state == "finished" and digest and each.trace_digest == digest
        ),
        None,
    )
