"""What agents learn without a recipe, beside the defaults of a peer."""
