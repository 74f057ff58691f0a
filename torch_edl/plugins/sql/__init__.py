"""Tables and queries of SQL databases as data."""
