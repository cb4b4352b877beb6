"""Connections of the launchers of a job of several nodes: messages up, decisions down."""
