"""The version of this package, defined only here."""

__version__ = "0.1.0"
