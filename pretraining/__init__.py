"""Pre-training: recipe -> corpora -> collators -> model -> checkpoint folder."""
