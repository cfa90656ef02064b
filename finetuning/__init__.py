"""Fine-tuning and evaluation of a checkpoint folder on downstream tasks."""
