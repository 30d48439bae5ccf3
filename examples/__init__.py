"""Examples, each complete on one page: an environment, an agent, and Anakin without the command line."""
