"""LangGraph: the checkpointer, and graphs within workflows."""
