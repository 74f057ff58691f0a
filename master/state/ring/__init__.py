"""The members of a ring, and what each member may do."""
