"""The attention layers of Hugging Face's transformers, each by the two dispatches that run on a CPU: "eager" and "sdpa"."""

from properties.adapters.huggingface import bert, gpt2, llama, t5

SUBJECTS = (*bert.SUBJECTS, *gpt2.SUBJECTS, *llama.SUBJECTS, *t5.SUBJECTS)
