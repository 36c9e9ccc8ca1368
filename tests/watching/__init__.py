"""For those who watch: finding, counting, families, the audit."""
