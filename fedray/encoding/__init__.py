"""Encodings: how clipped updates become integers on devices, and a sum again on the server."""
