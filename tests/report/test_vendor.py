"""The plotly.js that stands in pages: the one that was looked at, under its licence."""

import hashlib
import re
from importlib import resources

VENDOR = resources.files("fedray.report") / "vendor"
SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
"""Digest of plotly-basic.min.js in the npm package plotly.js-basic-dist-min 4.1.1."""


def test_it_is_the_bundle_that_was_reviewed_with_its_version_and_licence() -> None:
    content = (VENDOR / "plotly-basic.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    version = re.search(rb"plotly.js \(basic - minified\) v([\d.]+)", content)
    assert version is not None
    assert version.group(1).decode() in (VENDOR / "README.md").read_text()
    assert (VENDOR / "LICENSE").read_text().startswith("MIT License")


def test_it_stands_in_a_page_without_ending_its_script_and_asks_no_network_of_its_own() -> None:
    """What can ask is d3's reader of files, which is called with addresses of maps alone: the bundle has no maps. The page's
    policy refuses any request at all; tests of pages hold that, and that a browser finds nothing to refuse."""
    content = (VENDOR / "plotly-basic.min.js").read_text()
    assert "</script" not in content.lower()
    for word in (
        "WebSocket",
        "sendBeacon",
        "importScripts",
        "fetch(",
        "new Function",
        "EventSource",
        "serviceWorker",
    ):
        assert word not in content
    assert content.count("new XMLHttpRequest") == 1
