"""The kinds of task: how each is read, encoded, run and scored."""
