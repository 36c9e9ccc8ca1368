"""What becomes of calls that are cancelled."""
