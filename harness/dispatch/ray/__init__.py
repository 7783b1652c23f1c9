"""The `ray` dispatcher: Ray carries the jobs, the harness keeps deadlines, results and blame.

The command line (`dispatcher`, `ledger`) never imports Ray: a child process of it (`driver`) holds the connection, and
one actor a unit (`station`) supervises the launches on the nodes.
"""
