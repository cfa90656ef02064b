"""Model cards from what runs wrote down: configuration, recipe, run facts and results."""
