"""The commands of `legato`, one per file."""
