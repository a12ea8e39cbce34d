"""Code that analyses share: reading traces, making answers, and finding facts in calls, launches and maps."""
