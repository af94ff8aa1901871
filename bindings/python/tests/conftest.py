"""The fixtures, which the tests of mc-store-structured have, too."""

pytest_plugins = ["_fixtures"]
