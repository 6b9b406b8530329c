"""A profile becomes the text of its service: wrapper, unit or Supervisor program."""
