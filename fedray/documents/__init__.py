"""The documents that `--json` prints and that runs leave as JSON files, key by key.

A document is made of values, and what a key means stands where its value is defined. Here are the
keys that each document takes from the classes of its values, and the words for those that no class
has.
"""
