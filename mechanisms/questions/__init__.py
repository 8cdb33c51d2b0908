"""Federated analytics: questions, trust models, and the mechanism that answers a question under
one; see README.md of mechanisms."""
