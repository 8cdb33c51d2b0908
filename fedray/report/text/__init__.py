"""Studies of published runs in the terminal: tables made from their JSON documents."""
