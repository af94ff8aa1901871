"""The parts of the REST service; :mod:`mc_store.service` is the way in."""
