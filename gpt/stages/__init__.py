"""One file per executable: it reads options and connects the libraries to the stream. None imports another."""
