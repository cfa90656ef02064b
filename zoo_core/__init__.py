"""What pretraining/ and finetuning/ both stand on: recipes, tables and the facts of a run. Imports nothing of ours."""
