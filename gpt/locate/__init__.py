"""Which elements a program never used: names, lists and traces against what libraries have."""
