"""Run folders: written as the run goes, complete after a crash."""
