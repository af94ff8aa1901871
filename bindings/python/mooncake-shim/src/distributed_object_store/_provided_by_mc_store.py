"""Marks this folder as one of mc-store's: ``mc_store.install_as_mooncake`` looks for the file."""
