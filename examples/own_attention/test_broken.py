"""What a failure looks like. Not among the tests that are run: it fails."""

from own_attention import BrokenSelfAttention
from properties.testing import attention_tests

test_attention = attention_tests(BrokenSelfAttention, encodings=("bool",))
