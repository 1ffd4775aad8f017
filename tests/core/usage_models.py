"""Eviction policies that hear of uses, in plain Python: what a policy knows, and what it gives up next.

A content is the tuple of all tokens up to the last of a block; blocks have one token. Models keep whole contents where
the policies keep numbers, and look at everything where the policies look at one block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy

Content = tuple[int, ...]


class Model:
    """What happens to contents; the base knows which are idle, in which order they became so, and who was demoted."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.idle: OrderedDict[Content, None] = OrderedDict()
        self.demoted: list[Content] = []  # the first goes first

    def publish(self, content: Content) -> None: ...

    def hit(self, content: Content) -> None: ...

    def insert(self, content: Content) -> None:
        self.idle[content] = None

    def remove(self, content: Content) -> None:
        del self.idle[content]
        if content in self.demoted:
            self.demoted.remove(content)

    def demote(self, content: Content) -> None:
        if content in self.demoted:
            self.demoted.remove(content)
        self.demoted.insert(0, content)

    def demote_end(self, content: Content) -> int:
        """Demote a content with what it continues, as long as nothing else continues that; how many."""
        ends = []
        while content in self.idle and not self.is_continued(content, besides=ends):
            ends.append(content)
            content = content[:-1]
        for end in reversed(ends):
            self.demote(end)
        return len(ends)

    def pop(self) -> Content:
        content = self.demoted[0] if self.demoted else self.choose()
        self.remove(content)
        return content

    def choose(self) -> Content:
        """Of the idle contents, of which none is demoted, the next to go."""
        return next(iter(self.idle))

    def order(self) -> list[Content]:
        rehearsal = deepcopy(self)
        return [rehearsal.pop() for _ in self.idle]

    def is_continued(self, content: Content, besides: Sequence[Content] = ()) -> bool:
        return any(other[:-1] == content and other not in besides for other in self.idle)


class Recency(Model):
    """LRU."""


class Hits(Model):
    """NeverHitFirst; also the base of those that count uses."""

    most = 1

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.uses: dict[Content, int] = {}

    def publish(self, content: Content) -> None:
        self.uses[content] = 0

    def hit(self, content: Content) -> None:
        self.uses[content] = min(self.most, self.uses[content] + 1)

    def insert(self, content: Content) -> None:
        super().insert(content)
        if content[:-1]:  # what comes before is used as often
            self.uses[content[:-1]] = max(self.uses[content[:-1]], self.uses[content])

    def choose(self) -> Content:
        return min(self.idle, key=lambda content: self.uses[content])  # of equals the first


class Frequency(Hits):
    """LFUDA."""

    most = 62  # beyond the first use

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.age = 0
        self.rank: dict[Content, int] = {}

    def insert(self, content: Content) -> None:
        super().insert(content)
        self.rank[content] = self.age + 1 + self.uses[content]

    def choose(self) -> Content:
        content = min(self.idle, key=lambda content: self.rank[content])
        self.age = self.rank[content]
        return content


class Adaptive(Hits):
    """ARC: contents with a use beyond the first are frequent, others recent."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.share = 0
        self.gone: list[list[Content]] = [[], []]  # of the recent, of the frequent; oldest first

    def publish(self, content: Content) -> None:
        self.uses[content] = 0
        for kind, ghosts in enumerate(self.gone):
            if content in ghosts:
                step = max(1, len(self.gone[1 - kind]) // len(ghosts))
                self.share = max(0, min(self.num_blocks, self.share + (-step if kind else step)))
                ghosts.remove(content)
                self.uses[content] = 1
                break

    def of_kind(self, kind: int) -> list[Content]:
        return [content for content in self.idle if self.uses[content] == kind and content not in self.demoted]

    def pop(self) -> Content:
        is_demoted = bool(self.demoted)
        content = super().pop()
        if not is_demoted:
            recent, frequent = self.gone
            too_many = len(self.of_kind(0)) + len(recent) >= self.num_blocks
            if recent and (too_many or (len(recent) == self.num_blocks)):
                recent.pop(0)
            elif len(recent) + len(frequent) == self.num_blocks:
                frequent.pop(0)
            self.gone[self.uses[content]].append(content)
        return content

    def choose(self) -> Content:
        recent, frequent = self.of_kind(0), self.of_kind(1)
        if not recent or not frequent:
            return (recent or frequent)[0]
        is_large = len(recent) / len(self.idle) > self.share / self.num_blocks
        return recent[0] if is_large or self.is_continued(frequent[0]) else frequent[0]


class Fifo(Model):
    """S3FIFO: two queues of contents with uses, idle or not; `forget` is told where a content is no more."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.queues: list[OrderedDict[Content, None]] = [OrderedDict(), OrderedDict()]  # small, main
        self.uses: dict[Content, int] = {}
        self.home: dict[Content, int] = {}
        self.gone: list[Content] = []

    def publish(self, content: Content) -> None:
        self.uses[content] = 0
        self.home[content] = int(content in self.gone)
        if content in self.gone:
            self.gone.remove(content)

    def hit(self, content: Content) -> None:
        self.uses[content] = min(3, self.uses[content] + 1)

    def insert(self, content: Content) -> None:
        super().insert(content)
        if content not in self.queues[0] and content not in self.queues[1]:
            self.queues[self.home[content]][content] = None

    def demote(self, content: Content) -> None:
        super().demote(content)
        for queue in self.queues:
            queue.pop(content, None)

    def remove(self, content: Content) -> None:
        super().remove(content)
        before = content[:-1]
        stands = before in self.queues[0] or before in self.queues[1] or before in self.demoted
        if before in self.idle and not stands and not self.is_continued(before):
            queue = self.queues[self.home[before]]
            queue[before] = None
            queue.move_to_end(before, last=False)

    def pop(self) -> Content:
        is_demoted = bool(self.demoted)
        content = super().pop()
        if content in self.queues[0] and not is_demoted:
            if len(self.gone) == self.num_blocks - self.num_blocks // 10:
                self.gone.pop(0)
            self.gone.append(content)
        for queue in self.queues:
            queue.pop(content, None)
        return content

    def choose(self) -> Content:
        small, main = self.queues
        while True:
            queue = small if not main or len(small) > (len(small) + len(main)) // 10 else main
            content = next(iter(queue))
            if content not in self.idle:
                del queue[content]
            elif queue is small and self.uses[content] > 1:
                del small[content]
                main[content] = None
                self.uses[content] = 0
                self.home[content] = 1
            elif queue is main and self.uses[content] > 0:
                main.move_to_end(content)
                self.uses[content] -= 1
            elif self.is_continued(content):
                del queue[content]
            else:
                return content
