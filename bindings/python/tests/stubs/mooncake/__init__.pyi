# What the connectors import is this package by another name.
