"""Boards on the bench: radios are set up, frames are read and written in C."""
