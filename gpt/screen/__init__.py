"""Output for people: tables that fit the terminal, event lines, pictures, readable names."""
