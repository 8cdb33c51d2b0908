"""Federated analytics: questions, trust models, and mechanisms that answer under them; see
README.md of the package above."""
