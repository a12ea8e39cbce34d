"""What other people's tools read and write: their files, and the programs that take the place of theirs."""
