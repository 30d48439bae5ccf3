"""How parts of a run on different machines talk: no pickle, and nothing of agents."""
