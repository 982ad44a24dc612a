"""Damaged input of every kind, each case made by a seed, and a command that reads it.

`case.KINDS` lists what is damaged; `calls.verdict` runs a case and says what is wrong with how it
ended. `benchmarks/fuzz_readers.py` runs them by the thousand, the tests some hundreds.
"""
