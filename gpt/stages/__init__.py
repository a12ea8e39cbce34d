"""One file per executable. It parses the options and connects libraries to the stream; stages never import each other.
"""
