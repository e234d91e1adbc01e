"""Architectures in the whole daemon: the texts match another implementation's, and promise 1 holds, on small models of
every shape that tests/engine computes the logits of."""
import golden_models
from golden_models import FLAGS, ask, check_greedy, golden
from weftd import Weftd, every, fewer, main, parallel

MODELS = ("granite", "phi3", "mistral3", "olmo2", "lfm2", "lfm2moe", "glm4moe-mtp", "nemotron-h-moe-mtp", "deepseek2-mtp",
          "deepseek2-lite", "laguna", "minimax-m2", "muse-glimmer", "step35", "bailingmoe3", "qwen4exp",
          "deepseek4", "afmoe", "arcee", "bailingmoe", "bailingmoe2", "deepseek", "deepseek2-v3", "dots1", "ernie4-5",
          "ernie4-5-moe", "exaone", "exaone-moe", "exaone4", "exaone4-window", "gemma", "glm4", "granitehybrid",
          "granitehybrid-dense", "granitemoe", "internlm2", "olmoe", "qwen2moe", "seed-oss", "smollm3",
          "command-r", "cohere2", "cohere2moe", "hunyuan-dense", "hunyuan-moe", "nemotron", "stablelm", "starcoder2",
          "apertus", "falcon-h1", "kimi-linear", "mistral4", "nanbeige", "olmo", "llama4", "gemma3n", "jamba", "phimoe",
          "plamo2", "plamo3", "glm5-next", "mimo2-mtp",
          "nemotron-h-puzzle", "minimax-m3")
# Full attention, windows, convolutions, Mamba-2, latent attention, Kimi delta attention, compressed keys, branches beside
# each other behind a layer norm, norms behind the rotation, attention beside Mamba-2, layers that run twice,
# alternating updates of streams, Mamba-1, by channel and by head, latent attention to chosen blocks, blocks of each key
# head.
KINDS = every(MODELS, ("granite", "laguna", "lfm2moe", "nemotron-h-moe-mtp", "deepseek2-lite", "bailingmoe3",
                       "deepseek4", "granitehybrid", "afmoe", "cohere2moe", "hunyuan-dense", "falcon-h1", "kimi-linear",
                       "nanbeige", "gemma3n", "jamba", "plamo2", "glm5-next", "minimax-m3"))
REQUESTS = [r for r in golden_models.REQUESTS if "repetition_penalty" not in r]


def test_greedy_texts_are_those_of_another_implementation():
    check_greedy(fewer(MODELS))


def test_alone_in_company_in_chunks_preempted_and_behind_a_cached_prefix():
    for name in KINDS:
        with Weftd(*FLAGS, "--threads", 1, "--max-seqs", 1, model=golden(name)) as d:
            should = [ask(d, r, 60) for r in REQUESTS]
            assert [ask(d, r, 60) for r in REQUESTS] == should, (name, "again")
        for flags in (("--max-batch-rows", 16, "--max-seqs", 4), ("--depth", 2, "--threads", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                assert parallel([lambda r=r: ask(d, r, 60) for r in REQUESTS]) == should, (name, flags)
        with Weftd(*FLAGS, "--kv-pages", 37, "--max-context", 592, model=golden(name)) as d:
            for _ in range(20):  # declares short answers, so that the scheduler admits too many requests
                d.complete([5, 6, 7], max_tokens=1)
            assert parallel([lambda r=r: ask(d, r, 60) for r in REQUESTS]) == should, (name, "few pages")


main(globals())
