/* Chat templates by name: the prompts of a conversation of every role, as the formats are
 * published. */

#include <criterion/criterion.h>

#include "tests/text/template_support.h"
#include "text/template.h"

#define TURNS                                                                                      \
    R"({"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"},)"                       \
    R"({"role":"user","content":"More"}])"
#define VARS(first)                                                                                \
    R"({"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true,)"                       \
    R"("messages":[)" first TURNS "}"
#define SYSTEM VARS(R"({"role":"system","content":"S."},)")
#define PLAIN VARS("")

static void expect(const char *name, const char *system, const char *plain) {
    cr_assert(template_named(name), "%s", name);
    expect_text(template_named(name), SYSTEM, system);
    expect_text(template_named(name), PLAIN, plain);
}

Test(template_named, formats_of_turns_with_marks) {
    expect("chatml",
           "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
           "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n"
           "<|im_start|>assistant\n",
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
           "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n");
    expect("phi4",
           "<|im_start|>system<|im_sep|>S.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
           "<|im_start|>assistant<|im_sep|>Yo<|im_end|><|im_start|>user<|im_sep|>More<|im_end|>"
           "<|im_start|>assistant<|im_sep|>",
           "<|im_start|>user<|im_sep|>Hi<|im_end|><|im_start|>assistant<|im_sep|>Yo<|im_end|>"
           "<|im_start|>user<|im_sep|>More<|im_end|><|im_start|>assistant<|im_sep|>");
    expect("phi3",
           "<|system|>\nS.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYo<|end|>\n"
           "<|user|>\nMore<|end|>\n<|assistant|>\n",
           "<|user|>\nHi<|end|>\n<|assistant|>\nYo<|end|>\n<|user|>\nMore<|end|>\n"
           "<|assistant|>\n");
    expect("zephyr",
           "<|system|>\nS.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYo</s>\n<|user|>\nMore</s>\n"
           "<|assistant|>\n",
           "<|user|>\nHi</s>\n<|assistant|>\nYo</s>\n<|user|>\nMore</s>\n<|assistant|>\n");
    expect("llama3",
           "<s><|start_header_id|>system<|end_header_id|>\n\nS.<|eot_id|>"
           "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"
           "<|start_header_id|>user<|end_header_id|>\n\nMore<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\n",
           "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"
           "<|start_header_id|>user<|end_header_id|>\n\nMore<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\n");
#define TURN "<|START_OF_TURN_TOKEN|>"
#define OVER "<|END_OF_TURN_TOKEN|>"
    expect("command-r",
           "<s>" TURN "<|SYSTEM_TOKEN|>S." OVER TURN "<|USER_TOKEN|>Hi" OVER TURN
           "<|CHATBOT_TOKEN|>Yo" OVER TURN "<|USER_TOKEN|>More" OVER TURN "<|CHATBOT_TOKEN|>",
           "<s>" TURN "<|USER_TOKEN|>Hi" OVER TURN "<|CHATBOT_TOKEN|>Yo" OVER TURN
           "<|USER_TOKEN|>More" OVER TURN "<|CHATBOT_TOKEN|>");
    expect("vicuna", "S.\n\nUSER: Hi\nASSISTANT: Yo</s>\nUSER: More\nASSISTANT:",
           "USER: Hi\nASSISTANT: Yo</s>\nUSER: More\nASSISTANT:");
}

Test(template_named, formats_that_put_the_system_text_into_the_first_turn) {
    expect("llama2", "<s>[INST] <<SYS>>\nS.\n<</SYS>>\n\nHi [/INST] Yo </s><s>[INST] More [/INST]",
           "<s>[INST] Hi [/INST] Yo </s><s>[INST] More [/INST]");
    expect("mistral-v3", "<s>[INST] S.\n\nHi[/INST] Yo</s>[INST] More[/INST]",
           "<s>[INST] Hi[/INST] Yo</s>[INST] More[/INST]");
    expect("gemma",
           "<s><start_of_turn>user\nS.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
           "<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n",
           "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
           "<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n");
}

Test(template_named, other_names_have_none) {
    cr_expect(!template_named("") && !template_named("chatm") && !template_named("chatml2"));
    cr_expect(template_named(TEMPLATE_DEFAULT));
}
