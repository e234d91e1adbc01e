/*
 * named - has chat templates by the names that llama-server's --chat-template knows: Jinja sources
 * written for weft from the published formats.
 */

#include <stddef.h>
#include <string.h>

#include "base/util.h"
#include "text/template.h"

/* Pieces that most formats have: the loop over the turns, and the beginning of the answer. */
#define EACH "{%- for m in messages -%}"
#define END "{%- endfor -%}"
#define PROMPT(text) "{%- if add_generation_prompt -%}{{- '" text "' -}}{%- endif -%}"

/* Takes the system's text out of the messages, for formats that have no system turn and write it
 * before the text of the first user turn. */
#define TAKE_SYSTEM(join)                                                                          \
    "{%- set first = messages[0] if messages else none -%}"                                        \
    "{%- if first and first.role == 'system' -%}"                                                  \
    "{%- set system = " join " -%}{%- set messages = messages[1:] -%}"                             \
    "{%- else -%}{%- set system = '' -%}{%- endif -%}"

static const struct {
    const char *name, *source;
} named[] = {
    {"chatml",
     EACH "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}" END PROMPT(
         "<|im_start|>assistant\\n")},
    {"llama2", TAKE_SYSTEM("'<<SYS>>\\n' + first.content + '\\n<</SYS>>\\n\\n'") EACH
     "{%- if m.role == 'user' -%}"
     "{{- bos_token + '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' -}}"
     "{%- else -%}{{- ' ' + m.content + ' ' + eos_token -}}{%- endif -%}" END},
    {"llama3",
     "{{- bos_token -}}" EACH "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + "
     "m.content | trim + '<|eot_id|>' -}}" END PROMPT(
         "<|start_header_id|>assistant<|end_header_id|>\\n\\n")},
    {"mistral-v3", "{{- bos_token -}}" TAKE_SYSTEM("first.content + '\\n\\n'") EACH
     "{%- if m.role == 'user' -%}"
     "{{- '[INST] ' + (system if loop.first else '') + m.content + '[/INST]' -}}"
     "{%- else -%}{{- ' ' + m.content | trim + eos_token -}}{%- endif -%}" END},
    {"gemma", "{{- bos_token -}}" TAKE_SYSTEM("first.content | trim + '\\n\\n'") EACH
     "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + "
     "(system if loop.first else '') + m.content | trim + '<end_of_turn>\\n' -}}" END PROMPT(
         "<start_of_turn>model\\n")},
    {"phi3", EACH
     "{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' -}}" END PROMPT("<|assistant|>\\n")},
    {"phi4",
     EACH "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}" END PROMPT(
         "<|im_start|>assistant<|im_sep|>")},
    {"command-r",
     "{{- bos_token -}}" EACH
     "{{- '<|START_OF_TURN_TOKEN|><|' + ('CHATBOT' if m.role == 'assistant' else m.role | upper) + "
     "'_TOKEN|>' + m.content | trim + '<|END_OF_TURN_TOKEN|>' -}}" END PROMPT(
         "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")},
    {"zephyr", EACH "{{- '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' -}}" END PROMPT(
                   "<|assistant|>\\n")},
    {"vicuna", EACH
     "{%- if m.role == 'system' -%}{{- m.content + '\\n\\n' -}}"
     "{%- elif m.role == 'user' -%}{{- 'USER: ' + m.content + '\\n' -}}"
     "{%- else -%}{{- 'ASSISTANT: ' + m.content + eos_token + '\\n' -}}{%- endif -%}" END PROMPT(
         "ASSISTANT:")},
};

const char *template_named(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(named); i++)
        if (strcmp(named[i].name, name) == 0)
            return named[i].source;
    return NULL;
}

const char *template_name(size_t i) {
    if (i >= ARRAY_SIZE(named))
        return NULL;
    return named[i].name;
}
