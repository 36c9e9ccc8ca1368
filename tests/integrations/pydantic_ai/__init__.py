"""Agents of pydantic-ai within workflows."""
