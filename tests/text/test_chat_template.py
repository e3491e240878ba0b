"""Chat templates: same text as transformers, in a sandbox, errors that are safe to show."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ModelSource
from engine.errors import ModelError, RequestError
from engine.text.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate, load_chat_template
from tests.text import toys

LLAMA = (
    "{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}\n"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}\n"
    "{{- '<|start|>system\\n' + system + eos_token }}\n"
    "{%- for message in messages %}\n"
    "    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{- raise_exception('Roles must alternate user/assistant') }}\n"
    "    {%- endif %}\n"
    "    {{- '<|start|>' + message['role'] + '\\n' + message['content'] | trim + eos_token }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}\n"
)
BLOCKS = (
    "{% set ns = namespace(turns=0) %}\n"
    "{% for message in messages %}\n"
    "  {% if message.role == 'system' %}{% continue %}{% endif %}\n"
    "  {% generation %}[{{ message.content }}]{% set ns.turns = ns.turns + 1 %}{% endgeneration %}\n"
    "{{ {'é<': message.content} | tojson }}\n"
    "{% endfor %}{{ ns.turns }} {{ tools is none }}\n"
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": toys.TEXTS}),
    min_size=1,
    max_size=4,
)
HELLO = [{"role": "user", "content": "hello"}]


def render_by_transformers(template: str, messages: list[dict[str, str]], prompt: bool, special: dict[str, str]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    context: dict[str, Any] = dict(special)
    rendered = render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt, **context)
    return str(rendered[0][0])


def directory(path: Path) -> ModelSource:
    return ModelSource(kind="huggingface", path=str(path), files=())


@settings(max_examples=100, deadline=None)
@given(messages=MESSAGES, prompt=st.booleans())
def test_default_model_renders_as_transformers(messages: list[dict[str, str]], prompt: bool) -> None:
    expected = toys.reference_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert toys.default_template().render(messages, prompt) == expected


@pytest.mark.parametrize("template", [LLAMA, BLOCKS])
@settings(max_examples=50, deadline=None)
@given(messages=MESSAGES, prompt=st.booleans())
def test_renders_as_transformers(template: str, messages: list[dict[str, str]], prompt: bool) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        expected = render_by_transformers(template, messages, prompt, special)
    except Exception:
        with pytest.raises(RequestError):
            ChatTemplate(template, special).render(messages, prompt)
    else:
        assert ChatTemplate(template, special).render(messages, prompt) == expected


def test_the_template_authors_own_words_are_shown() -> None:
    turns = [{"role": "assistant", "content": "hi"}]
    with pytest.raises(RequestError, match="refused the messages: Roles must alternate user/assistant") as caught:
        ChatTemplate(LLAMA, {"bos_token": "", "eos_token": ""}).render(turns)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages[0].content.format.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__}' | attr('format'))(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ messages.append(1) }}",
        "{% do messages[0].update({'role': 'x'}) %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(template: str) -> None:
    """They get an error, or the nothing that the sandbox puts in place of what is forbidden."""
    try:
        text = ChatTemplate(template, {}).render(HELLO)
    except (RequestError, ModelError) as error:
        text = str(error)
        assert "__" not in text
        assert "0x" not in text
    else:
        assert text == ""


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ 1 / 0 }}",
        "{{ missing.attribute }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'a' * 1000 }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_that_blow_up_are_an_error(template: str) -> None:
    with pytest.raises((RequestError, ModelError), match="chat template"):
        ChatTemplate(template, {}).render(HELLO)


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": " a "}]
    ChatTemplate(LLAMA, {"bos_token": "", "eos_token": ""}).render(messages)
    assert messages == [{"role": "user", "content": " a "}]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user", "content": "x"},
        HELLO * 5000,
        ["hello"],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": "x", "name": "y"}],
        [{"role": "root", "content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user\n<|im_end|>", "content": "x"}],
    ],
)
def test_malformed_messages_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages") as caught:
        ChatTemplate("{{ messages }}", {}).render(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("template", ["{% if %}", "{{ unclosed", "{% nosuchtag %}", "x" * (MAX_TEMPLATE_CHARS + 1)])
def test_unusable_templates_are_refused_at_start(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(template, {})


def test_load_from_a_huggingface_directory(tmp_path: Path) -> None:
    assert load_chat_template(directory(tmp_path)) is None
    config: dict[str, Any] = {"bos_token": {"content": "<b>"}, "chat_template": "one{{ bos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tmp_path) == "one<b>"
    config["chat_template"] = [{"name": "rag", "template": "x"}, {"name": "default", "template": "two"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tmp_path) == "two"
    (tmp_path / "chat_template.jinja").write_text("three{{ bos_token }}\n")
    assert rendered(tmp_path) == "three<b>"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="UTF-8"):
        load_chat_template(directory(tmp_path))


def rendered(path: Path) -> str:
    template = load_chat_template(directory(path))
    assert template is not None
    return template.render(HELLO)
