"""What pretraining/ and finetuning/ share: recipes, tables and the facts of a run. Imports no other package of ours."""
