"""llama.cpp behind JSON lines: a question a line on stdin, an answer a line on stdout; run by `benchmarks/llama.py`.

Needs llama-cpp-python and nothing of entmtp, so that it runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Worker:
    """A model in llama.cpp. Every text begins with an empty cache, since llama-cpp-python keeps common beginnings otherwise."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import llama_cpp

        self.version = llama_cpp.__version__
        self.model = llama_cpp.Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text, special tokens read as such and none added."""
        return list(self.model.tokenize(text.encode(), add_bos=False, special=True))

    def write(self, ids: list[int], count: int) -> dict[str, Any]:
        """Exactly `count` new tokens, greedy; seconds until the first, which the prefill decides, and in all."""
        self.model.reset()
        start = time.perf_counter()
        tokens, first = list[int](), 0.0
        for token in self.model.generate(ids, temp=0.0, repeat_penalty=1.0):
            first = first or time.perf_counter() - start
            tokens.append(int(token))
            if len(tokens) == count:
                break
        return {"tokens": tokens, "prefill_seconds": first, "seconds": time.perf_counter() - start}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what llama.cpp prints must not come between answers
    worker = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if worker is None:
                worker = Worker(**asked)
                answer: Any = worker.version
            else:
                answer = worker.tokenize(asked["text"]) if "text" in asked else worker.write(asked["ids"], asked["count"])
            answers.write(json.dumps({"answer": answer}) + "\n")
        except (ImportError, ValueError, RuntimeError, OSError) as error:  # the other side has to hear of it
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    main()
