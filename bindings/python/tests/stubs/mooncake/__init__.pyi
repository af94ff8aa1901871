# The connectors import this package by another name.
