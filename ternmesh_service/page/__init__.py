"""The web page of a host or a node: what it serves, and who may do what there."""
