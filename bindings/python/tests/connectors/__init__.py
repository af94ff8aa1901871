"""Connectors of inference engines: the calls that they make of `mooncake.store`, and what they
check, against real clusters. docs/connectors.md says which is whose."""
