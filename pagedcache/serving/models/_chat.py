"""How models lay out a conversation: a few known layouts, since a model file's own template is a program.

A template is never run. Which control tokens it names tells which layout is the model's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["ChatLayout", "layout_of"]


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """``begin role new-line text end new-line`` for each message."""

    begin: str  # control token
    end: str  # control token
    roles: Mapping[str, str]  # names of roles, where they are not the usual ones
    has_system: bool  # else what the system says begins the next message
    without_template: bool  # whether a model that has the tokens, and no template, is taken to talk so

    def messages(self, messages: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield (role, text) of each message as the model knows them."""
        said = ""
        for role, text in messages:
            if role == "system" and not self.has_system:
                said += f"{text}\n\n"
                continue
            yield self.roles.get(role, role), said + text
            said = ""
        if said:
            yield "user", said.removesuffix("\n\n")

    @property
    def answers(self) -> str:
        """The role of answers."""
        return self.roles.get("assistant", "assistant")


LAYOUTS = (
    ChatLayout("<|im_start|>", "<|im_end|>", {}, has_system=True, without_template=True),  # ChatML
    # Gemma: models that were not trained to talk have the tokens too.
    ChatLayout("<start_of_turn>", "<end_of_turn>", {"assistant": "model"}, has_system=False, without_template=False),
)


def layout_of(tokens: Collection[str], template: object) -> ChatLayout | None:
    """Return the layout of a model with these tokens and this template, which is looked at if it is text."""
    for layout in LAYOUTS:
        named = layout.begin in template if isinstance(template, str) else layout.without_template
        if named and layout.begin in tokens and layout.end in tokens:
            return layout
    return None
