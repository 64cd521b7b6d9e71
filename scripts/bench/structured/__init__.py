"""Structured output, measured: real schemas, a model's answers, random schemas, and speed."""
