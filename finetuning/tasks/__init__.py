"""One package per kind of task: from tables to encoded rows."""
