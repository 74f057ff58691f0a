"""Formats of files beyond RecordIO, CSV and Parquet."""
