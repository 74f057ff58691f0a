"""Tables that a server or library answers for: SQL and MaxCompute, a record is a row by its place.
No files here, and no driver beyond the module of its database."""
