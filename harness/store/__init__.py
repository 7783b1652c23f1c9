"""Parquet: the only place that imports pyarrow."""
