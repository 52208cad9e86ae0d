"""Aggregators: what they save and cost, how soon liars are caught, and 100,000 boards.

Each fleet is a process of its own with the real hosts, boards and packets, in memory:

    python -m bench.hierarchy star|aggregator SEED ROUNDS

