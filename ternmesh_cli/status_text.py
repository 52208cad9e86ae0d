"""The answers of a host and of a node as text for people."""
