"""The scenario: everything that may change a result, as a frozen value.

Each table of a scenario file has a module here. Each key is a field, with its unit in its name or
its description; `fedray schema` prints them as a JSON schema. Settings that can only change the
running time are in `fedray.runtime.placement`.
"""

from fedray.base.facade import lazily

__getattr__, __dir__ = lazily(__name__)
