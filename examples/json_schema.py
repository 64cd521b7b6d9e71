"""An answer that fits a JSON schema. The grammar holds for drafted tokens as well as for the target's own.

python examples/json_schema.py [TARGET.gguf [DRAFT.gguf]]
"""

import json
import sys

from specgguf import SpeculativeLlama

SCHEMA = {
    "type": "object",
    "properties": {
        "language": {"type": "string", "maxLength": 20},
        "year": {"type": "integer"},
        "typed": {"type": "boolean"},
    },
    "required": ["language", "year", "typed"],
}

llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    reply = llm.create_chat_completion(
        [{"role": "user", "content": "Describe the programming language Rust."}],
        response_format={"type": "json_object", "schema": SCHEMA},
        max_tokens=120,
        temperature=0.0,
    )
    print(json.dumps(json.loads(reply["choices"][0]["message"]["content"]), indent=2))
