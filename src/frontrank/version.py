"""The version of the package, written here alone: it is read at build time, by models and by runs."""

__version__ = "0.2.0"
