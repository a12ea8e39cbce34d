"""File formats. Nothing here depends on a command line or decides what to do with the data."""
