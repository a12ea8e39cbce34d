"""Which GPU code a program never uses, and how a library is rebuilt without it."""
