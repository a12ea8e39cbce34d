"""What a person sees: tables that fit the terminal, lines of events, names as their source has them."""
