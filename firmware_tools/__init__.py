"""Boards on the bench: radios are set up, microcontrollers flashed, frames checked in C."""
