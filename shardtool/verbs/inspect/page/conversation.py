"""Find a conversation in JSON: LLaVA and ShareGPT (`from`, `value`), OpenAI (`role`, `content`), and similar forms."""

from __future__ import annotations

import json

_LIST_NAMES = ("conversations", "messages", "conversation", "dialog", "dialogue", "turns")
_ROLE_NAMES = ("role", "from", "speaker")
_TEXT_NAMES = ("content", "value", "text")


def find_turns(document: object) -> list[tuple[str, str]]:
    """Return the role and text of each turn, or an empty list if the document is not a conversation."""
    if isinstance(document, dict):
        document = next((document[name] for name in _LIST_NAMES if isinstance(document.get(name), list)), None)
    if not isinstance(document, list) or not document:
        return []
    turns = []
    for turn in document:
        role = next((turn[name] for name in _ROLE_NAMES if name in turn), None) if isinstance(turn, dict) else None
        if not isinstance(role, str) or not any(name in turn for name in (*_TEXT_NAMES, "tool_calls")):
            return []
        calls = turn.get("tool_calls")
        parts = [_text_of(turn[name]) for name in _TEXT_NAMES if name in turn][:1]
        parts += [f"[call {_compact(call)}]" for call in calls] if isinstance(calls, list) else []
        turns.append((role, "\n".join(filter(None, parts))))
    return turns


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(_part_text, content))
    return "" if content is None else _compact(content)


def _part_text(part: object) -> str:
    if isinstance(part, dict):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', _compact(part))}]"
    return _text_of(part)


def _compact(value: object) -> str:
    if isinstance(value, dict) and isinstance(function := value.get("function"), dict):
        return f"{function.get('name', '')}({function.get('arguments', '')})"
    return json.dumps(value, ensure_ascii=False, default=str)
