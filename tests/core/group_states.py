"""What stands beside a table with state groups: the blocks of states, which hold the tokens that they are about."""


class States:
    """By block what was written to it: the state group, which of its blocks it is, and the sequence's tokens."""

    def __init__(self, state_blocks):
        self.state_blocks = state_blocks
        self.blocks = {}

    def __bool__(self):
        return bool(self.state_blocks)

    def forget(self, blocks):
        """They hold K/V from here on."""
        for block in blocks:
            self.blocks.pop(block, None)

    def check(self, group, blocks, tokens):
        """These blocks hold the state of a group after such tokens."""
        expected = [(group, k, tuple(tokens)) for k in range(len(blocks))] if tokens else [None] * len(blocks)
        assert [self.blocks.get(block) for block in blocks] == expected
        assert all(block > 0 for block in blocks) if tokens else not any(blocks)

    def run(self, step, before, after):
        """A step reads the states after the tokens `before` of each row, and writes those after the tokens `after`."""
        for group, (reads, writes) in enumerate(step.states):
            for row, tokens in zip(reads.tolist(), before, strict=True):
                self.check(group, row, tokens)
            for row, old, new in zip(writes.tolist(), before, after, strict=True):
                assert (max(row) < 0) == (len(old) == len(new)), "written without new tokens, or not with them"
                self.blocks |= {block: (group, k, tuple(new)) for k, block in enumerate(row) if block >= 0}

    def check_row(self, table, sid, first_group, tokens):
        """What the table says of a row's states, open steps included."""
        for group in range(len(self.state_blocks)):
            self.check(group, table.block_table(sid, first_group + group).tolist(), tokens)
