"""Noise mechanisms of DP-FTRL: strategies, their sensitivities, and accounting. Mathematics only;
see README.md."""

from fedray.base.facade import lazily

__getattr__, __dir__ = lazily(__name__)
