"""The fixtures of the store's tests."""

pytest_plugins = ["_fixtures"]
