"""What clients and server exchange, and what both know of devices."""
