"""One file per command of ``vitlet``: ``run(words)`` reads its flags, works, and returns the exit code.

Each imports what it needs when it runs, so that ``--help`` is instant.
"""
