"""Runs of the OpenAI Agents SDK within workflows."""
