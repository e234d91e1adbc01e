"""The blocks of client-settings.md that no client reads in a test: each has the members that the client requires, as its
own schema or source said on 2026-11-29, of their types."""
import json
import pathlib
import re

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/reference/client-settings.md").read_text()
NUMBER = (int, float)
# charm.land/crush.json, Model and SelectedModel
CRUSH_MODEL = {"id": str, "name": str, "context_window": int, "default_max_tokens": int, "can_reason": bool, "supports_attachments": bool,
               "cost_per_1m_in": NUMBER, "cost_per_1m_out": NUMBER, "cost_per_1m_in_cached": NUMBER, "cost_per_1m_out_cached": NUMBER}
CRUSH_SELECTED = {"model": str, "provider": str}
# crates/settings_content/src/language_model.rs
ZED_PROVIDER = {"api_url": str, "available_models": list}
ZED_MODEL = {"name": str, "display_name": str, "max_tokens": int, "max_output_tokens": int}
# extensions/copilot/package.json and customEndpointProvider.ts of VS Code
VSCODE_GROUP = {"name": str, "vendor": str, "apiType": str, "apiKey": str, "models": list}
VSCODE_MODEL = {"id": str, "name": str, "url": str, "toolCalling": bool, "vision": bool, "maxInputTokens": int, "maxOutputTokens": int}


def blocks(heading):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", section, re.M | re.S)]


def has_exactly(value, members):
    assert set(value) == set(members), set(value) ^ set(members)
    for name, kind in members.items():
        assert isinstance(value[name], kind) and (kind is bool or not isinstance(value[name], bool)), (name, value[name])


def check_crush(config):
    provider = config["providers"]["weft"]
    has_exactly(provider, {"name": str, "type": str, "base_url": str, "api_key": str, "models": list})
    assert provider["type"] == "openai-compat" and provider["base_url"].endswith("/v1")
    has_exactly(provider["models"][0], CRUSH_MODEL)
    assert set(config["models"]) == {"large", "small"}
    for selected in config["models"].values():
        has_exactly(selected, CRUSH_SELECTED)
    has_exactly(config["options"], {"request_timeout": int})


def check_zed(settings):
    provider = settings["language_models"]["openai_compatible"]["weft"]
    has_exactly(provider, ZED_PROVIDER)
    has_exactly(provider["available_models"][0], ZED_MODEL)


def check_vscode(groups):
    has_exactly(groups[0], VSCODE_GROUP)
    assert (groups[0]["vendor"], groups[0]["apiType"]) == ("customendpoint", "chat-completions")
    has_exactly(groups[0]["models"][0], VSCODE_MODEL)
    assert groups[0]["models"][0]["url"].endswith("/v1/chat/completions")


def fails(check, value):
    try:
        check(value)
    except AssertionError:
        return True
    return False


crush, = blocks("Crush")
zed, vscode = blocks("Editors")
check_crush(crush)
check_zed(zed)
check_vscode(vscode)
# The checks can fail.
del crush["providers"]["weft"]["models"][0]["can_reason"]
zed["language_models"]["openai_compatible"]["weft"]["available_models"][0]["max_tokens"] = True
vscode[0]["models"][0]["contextSize"] = 1
assert fails(check_crush, crush) and fails(check_zed, zed) and fails(check_vscode, vscode)
