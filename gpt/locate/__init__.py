"""Find the elements that a program never used: compare names, lists and traces with what libraries contain."""
