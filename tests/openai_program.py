"""A program with OpenAI's client for the tests: streams one step of a workflow, a line for each chunk.

python tests/openai_program.py BASE_URL WORKFLOW_ID STEP
"""

import sys

from openai import OpenAI


def main(url: str, workflow: str, step: str) -> None:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="sim-small",
            messages=[{"role": "user", "content": "Tell me of rivers."}],
            max_tokens=200,
            seed=5,
            stream=True,
            extra_headers={"X-Legato-Workflow": workflow, "X-Legato-Step-Key": step},
        )
        for chunk in stream:
            sys.stdout.write(f"{chunk.id} {chunk.choices[0].delta.content!r}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
