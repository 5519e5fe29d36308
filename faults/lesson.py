"""The six failure modes of the lesson, and the silent cousins of its mask mistake."""

from __future__ import annotations

from torch import Tensor

from faults.facts import chooses, sees
from faults.fault import Fault
from properties.case import Case


class WrongSplitOrder(Fault):
    """Split the heads with one `view` straight to `[B, h, T, d_head]`, and never move an axis.

    Why it is wrong:
        A view does not move numbers. `[B, T, d]` read as `[B, h, T, d_head]` hands head 0 all features of the first T/h tokens, so
        every "head" is a stretch of the sequence, and every "token" of it a slice of some other token.

    When it shows:
        With more than one head and more than one token on a side that matters.

    Seen in the wild:
        https://github.com/reczoo/FuxiCTR/issues/30
        https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/53
    """

    root_cause = "qkv projection: head interaction"

    def split_heads(self, x: Tensor) -> Tensor:
        return x.reshape(
            x.shape[0], x.shape[2] // self.d_head, x.shape[1], self.d_head
        )  # the shape asked for, and none of the tokens in it

    @staticmethod
    def visible(case: Case) -> bool:
        mixed_values = case.g > 1 and case.S > 1 and sees(case)
        mixed_queries = case.num_heads > 1 and case.T > 1 and chooses(case)
        return mixed_values or mixed_queries


class MissingTranspose(Fault):
    """Leave the heads where `view` put them, `[B, T, h, d_head]`, and attend from head to head instead of from token to token.

    Why it is wrong:
        The matrix product works on the last two axes. Without `transpose(1, 2)` these are heads and features: every token compares
        its own heads with each other, and no token ever meets another.

    When it shows:
        As soon as there is more than one head or token. With as many tokens as heads every shape fits.

    Seen in the wild:
        https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1
    """

    root_cause = "qkv projection: head interaction"

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head))

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1 or case.T > 1 or case.S > 1
