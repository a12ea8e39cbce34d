"""One file per executable: it parses options and connects libraries to the stream. Stages never import each other."""
