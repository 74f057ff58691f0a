"""Formats of files beyond RecordIO, TFRecord, CSV and Parquet."""
