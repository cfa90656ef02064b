"""One module per kind of task: from tables to encoded rows."""
