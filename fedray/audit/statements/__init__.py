"""Statements that a claim may make: one file per key of a claim about participation."""
