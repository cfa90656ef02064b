"""The four encoders. Import from the files; importing this package registers nothing with the Auto classes."""
