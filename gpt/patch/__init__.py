"""Remove unused code from libraries: plan the change, carry it out, check the result, and write it."""
