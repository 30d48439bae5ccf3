"""The first minutes: what agents learn without a recipe, beside a peer, and how long the first commands take."""
