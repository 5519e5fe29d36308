from own_attention import SelfAttention
from properties.testing import attention_tests

test_attention = attention_tests(SelfAttention, encodings=("bool",))
