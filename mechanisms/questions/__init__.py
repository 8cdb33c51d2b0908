"""Federated analytics: questions, trust models, and mechanisms that answer under them; see README.md
of the package above."""

from fedray.base.facade import lazily

__getattr__, __dir__ = lazily(__name__)
