"""What tests share: fakes, tiny models, simulated machines, a scripted engine and helpers for terminals and servers."""
