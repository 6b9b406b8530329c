"""The Jinja templates of every generated file, as package data of ``servicekit.templates``."""
