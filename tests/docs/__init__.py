"""The documents are tested: what they show runs, what they list is complete, where they point exists."""
