"""A library without what is unused: the plan, the ways to carry it out, and how it is written and checked."""
