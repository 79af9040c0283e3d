"""The recorded server's tokenizer under a chat template that renders tools, as real templates do."""

import shutil
from pathlib import Path

import pytest

from kvscope.prompts.tokenizing import LocalTokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data" / "tokenizer"
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tool_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / name, folder / name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return load_tokenizer(folder)
