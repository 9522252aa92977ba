"""The version of the package, which modules below its root may know."""

__version__ = "0.1.0"
