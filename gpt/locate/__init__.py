"""Find the elements that a program never used: compare names, lists and traces with the contents of libraries."""
