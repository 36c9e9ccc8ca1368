"""Storms: real processes killed, stopped and cut off, which tests/judge judges afterwards."""
