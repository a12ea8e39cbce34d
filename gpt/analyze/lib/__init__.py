"""Code that analyses share: read traces, make answers, and find facts in calls, launches and maps."""
