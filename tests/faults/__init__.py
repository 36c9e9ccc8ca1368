"""Storms: real processes killed, stopped and cut off, and a checker that finds what went wrong."""
