"""The Jinja templates of every generated file, found as package data of ``servicekit.templates``."""
