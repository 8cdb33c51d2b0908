"""Scenario: everything that may change a result, as a frozen value.

Each table of the file has a module here; each key is a field, with its unit in its name or in its
description. `fedray schema` prints the same as a JSON schema. Settings that may only change the
wall clock are in `fedray.runtime.placement`.
"""

from fedray.base.facade import lazily

__getattr__, __dir__ = lazily(__name__)
