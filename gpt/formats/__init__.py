"""File formats. Nothing here knows a command line or decides what to do with what it reads."""
