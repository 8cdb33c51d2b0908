"""Messages and protocols between clients and server, and their common knowledge of devices."""
