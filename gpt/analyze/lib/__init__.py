"""What analyses share: the way through the traces, answers, and what is found in calls, launches and maps."""
