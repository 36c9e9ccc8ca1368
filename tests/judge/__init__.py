"""One judge for storms and the simulation: evidence, the rules it must keep, and the story of a run that breaks one."""
