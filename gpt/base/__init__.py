"""The ground that everything stands on: errors, messages, outputs, caches, signals, workers, the command line."""
