"""The pure core: bytes and arrays in, bytes and arrays out; no file, socket, clock or thread."""

__version__ = "0.1.0"
