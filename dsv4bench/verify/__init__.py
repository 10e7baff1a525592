"""The conformance suite and the checks around a timing: is what was measured right?"""
