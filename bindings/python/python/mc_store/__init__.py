"""Distributed KV-cache store for LLM inference."""
