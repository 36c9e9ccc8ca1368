"""For those who watch: runs are found, counted and followed by bounded questions; what is done leaves a trace."""
