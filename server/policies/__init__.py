"""What devices remember of an attempt, and how long they keep away; one file per policy."""
