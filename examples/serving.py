"""Serve OpenAI's protocol from your own program (needs the extra `server`). Ctrl-C stops it.

    python examples/serving.py [TARGET.gguf [DRAFT.gguf]]

Then, from anywhere on this machine:

    client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="any")
    client.chat.completions.create(model="mine", messages=[{"role": "user", "content": "Hello"}])
"""

import os
import sys

from specgguf import SpeculativeLlama
from specgguf.serve.server import ServeConfig, Service, listen, run

port = int(os.environ.get("PORT", "8080"))
llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    config = ServeConfig(names=("mine",), defaults={"temperature": 0.7}, queue_max=8)
    service = Service(
        llm, config, log=lambda record: print(record.text())
    )  # service.app is an ASGI application, to be mounted elsewhere
    listening = listen("127.0.0.1", port)
    run(service, listening, started=lambda: print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True))
