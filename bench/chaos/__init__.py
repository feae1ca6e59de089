"""`make chaos`: a storm of signals on a whole fleet while streams and workflows run, and what became of every one of them.

plan.py (pure) draws from a seed what is struck when; strikes.py strikes; asks.py (pure) says what each step must answer; readers.py and
programs.py are the load; checks.py asks the records afterwards; pauses.py (pure) says what readers saw; report.py is the table; run.py puts
them together.
"""
