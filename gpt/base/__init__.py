"""The basics that other packages use: errors, messages, output files, caches, signals, workers, the command line."""
