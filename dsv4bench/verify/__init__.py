"""Conformance: is a provider's output right?"""
