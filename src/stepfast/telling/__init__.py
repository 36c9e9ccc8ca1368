"""What people are told of runs, in words: for the command line and the console alike."""
