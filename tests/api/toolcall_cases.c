/*
 * Outputs of models and the events that they mean: for every format one call, two calls, text
 * around them, no arguments, and broken forms. The C strings are broken only for width.
 */

#include "tests/api/toolcall_support.h"

#define PARIS R"({"city": "Paris", "unit": "celsius"})"
#define FIND R"({"pattern": "a|b", "paths": ["src/", "d e"], "max_results": 5})"
/* A call as an object: its arguments are the member @key. */
#define OBJECT(name, key, args) R"({"name": ")" name R"(", ")" key R"(": )" args "}"
#define LLAMA(name, args) OBJECT(name, "parameters", args)
#define WEATHER OBJECT("get_weather", "arguments", PARIS)
#define SEARCH OBJECT("search_files", "arguments", FIND)
#define TWO "get_weather" PARIS "; search_files" FIND ";"

/* DeepSeek's markers. */
#define DS_BEGIN "<｜tool▁calls▁begin｜>"
#define DS_END "<｜tool▁calls▁end｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_CLOSE "<｜tool▁call▁end｜>"
#define DS_SEP "<｜tool▁sep｜>"
#define DSML "｜DSML｜"
/* A tag of PLaMo 3, and a call with what it writes before the arguments. */
#define PLAMO(tag) "<|plamo:" tag ":plamo|>"
#define PLAMO_CALL(name, before, args)                                                             \
    PLAMO("begin_tool_request")                                                                    \
    PLAMO("begin_tool_name")                                                                       \
    name PLAMO("end_tool_name") PLAMO("begin_tool_arguments")                                      \
        before args PLAMO("end_tool_arguments") PLAMO("end_tool_request")
#define K2 "<|tool_calls_section_begin|>"
#define K2_END "<|tool_calls_section_end|>"
#define K2_CALL "<|tool_call_begin|>"
#define K2_ARGS "<|tool_call_argument_begin|>"
#define K2_CLOSE "<|tool_call_end|>"
#define K3_ARG(k, t, v)                                                                            \
    R"(<|open|>argument key=")" k R"(" type=")" t R"("<|sep|>)" v "<|close|>argument<|sep|>"

/* as many as are held until the text behind them is known */
#define BLANKS "                                                                "

#define CASE(f, r, i, ...)                                                                         \
    { .format = (f), .reasoning = (r), .in = (i), .want = __VA_ARGS__ }

const struct toolcall_case toolcall_cases[] = {
    /* no format: text and reasoning */
    CASE(NULL, NULL, "Hello\n  world \n", "C<Hello\n  world \n>"),
    CASE(NULL, "think", "<think>\nhm\n</think>\n\nHello", "R<hm> C<Hello>"),
    CASE(NULL, "think", "hm, so\n</think>\n\nHello ", "R<hm, so> C<Hello >", .in_reasoning = true),
    CASE(NULL, "think", "  <think></think>Hello", "C<Hello>"),
    CASE(NULL, "think", "Tags like <think> are </think> text",
         "C<Tags like <think> are </think> text>"),
    CASE(NULL, "think", "<think>never ends <thin", "R<never ends <thin>"),
    /* reasoning that interrupts the answer; a lone marker is nothing */
    CASE(NULL, "think", "one</think>\n\nText one.\n<think>\ntwo\n</think>\n\nText two.\n",
         "R<one> C<Text one.> R<two> C<Text two.\n>", .in_reasoning = true),
    CASE(NULL, "think", "The answer.\n<think>", "C<The answer.>"),
    CASE(NULL, "think", "The answer.\n\n  <think>\n", "C<The answer.>"),
    CASE(NULL, "think", "The answer.\n<think>\n\n</think>\n", "C<The answer.>"),
    CASE(NULL, "think", "A\n<think>b</think>\n<think>c</think>\nD\n<think>e",
         "C<A> R<bc> C<D> R<e>"),
    CASE("hermes", "think",
         "I look.\n<think>how?</think>\n<tool_call>{\"name\": "
         "\"ping\"}</tool_call>\nDone.\n<think>so",
         "C<I look.> R<how?> ping{}; C<Done.> R<so>"),
    CASE("hermes", "think", "I look.\n<think>how?</think>\n<tool_call>{no",
         "C<I look.> R<how?> C<<tool_call>{no>"),
    CASE("qwen-coder", "think", "A.\n<think>\nb\n</think>\nC", "C<A.> R<b> C<C>"),
    CASE("glm", "think", "A.\n<think>b</think>C", "C<A.> R<b> C<C>"),
    CASE("mistral-args", "mistral", "A.\n[THINK]b[/THINK]C", "C<A.> R<b> C<C>"),
    CASE("seed", "seed", "A.\n<seed:think>b</seed:think>C", "C<A.> R<b> C<C>"),
    /* an answer about markers */
    CASE(NULL, "think", "Write <think>\nin a line", "C<Write <think>\nin a line>"),
    CASE(NULL, "think", "Tags:\n<think> begins it,\n`<think>` too,\n> <think>\n- <think>\nok",
         "C<Tags:\n<think> begins it,\n`<think>` too,\n> <think>\n- <think>\nok>"),
    CASE(NULL, "think", "So:\n```xml\n<think>\nhm\n</think>\n```\nAnd\n<think>hm</think>\nend",
         "C<So:\n```xml\n<think>\nhm\n</think>\n```\nAnd> R<hm> C<end>"),
    CASE(NULL, "think", "So:\n~~~~\n```\n~~~\n<think>\n~~~~ \n<think>hm",
         "C<So:\n~~~~\n```\n~~~\n<think>\n~~~~> R<hm>"),
    CASE(NULL, "think", "So:\n```a```\n<think>hm", "C<So:\n```a```> R<hm>"),
    CASE(NULL, "think", "So:\n  ```\n``` x\n<think>hm", "C<So:\n  ```\n``` x\n<think>hm>"),
    CASE(NULL, "mistral", "[THINK]a [THINK] b[/THINK]c", "R<a [THINK] b> C<c>"),
    CASE(NULL, "command-r7b", "<|START_THINKING|>a<|END_THINKING|>b", "R<a> C<b>"),
    CASE(NULL, "gemma4", "<|channel>thought\nhm\n<channel|>Hello", "R<hm> C<Hello>"),

    /* hermes */
    CASE("hermes", "think", "<tool_call>\n" WEATHER "\n</tool_call>", "get_weather" PARIS ";"),
    CASE("hermes", "think",
         "<think>\nwhy\n</think>\n\nI look.\n<tool_call>\n" WEATHER
         "\n</tool_call>\n<tool_call>\n" SEARCH "\n</tool_call>\n\nDone. ",
         "R<why> C<I look.> " TWO " C<Done. >"),
    CASE("hermes", NULL,
         R"(<tool_call>{"arguments": {"a": [1, {"b": null}]}, "name": "f"}</tool_call>)",
         R"(f{"a": [1, {"b": null}]};)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "ping"}</tool_call>)", "ping{};"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "ping", "arguments": null}</tool_call>)",
         "ping{};"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "ping", "arguments": {}}</tool_call>x)",
         "ping{}; C<x>"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"\\n\"}"}</tool_call>)",
         R"(f{"a": "\n"};)"),
    CASE("hermes", NULL,
         R"(<tool_call>{"type": "function", "function": {"name": "f", "arguments": )"
         R"({"a": )"
         "1}}}"
         "</tool_call>",
         R"(f{"a": 1};)"),
    CASE("hermes", NULL,
         R"(<tool_call>{"name": "f", "arguments": {"t": "</tool_call> \u00e9 é 日本 )"
         "\\ud83d\\ude00 "
         R"(\"q\" \\ /"}}</tool_call>)",
         R"(f{"t": "</tool_call> \u00e9 é 日本 \ud83d\ude00 \"q\" \\ /"};)"),
    /* repaired: a line break and a backslash in a string, a comma too many, half a surrogate pair,
     * no last brace */
    CASE("hermes", NULL,
         R"(<tool_call>{"name": "f", "arguments": {"t": "a)"
         "\n"
         R"(b\d\ud800", "l": [1, 2, ], )"
         "}}</tool_call>",
         R"(f{"t": "a\nb\\d\ufffd", "l": [1, 2]};)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>!)",
         R"(f{"a": 1}; C<!>)"),
    /* not calls */
    CASE("hermes", NULL, "a <tool_call> b", "C<a <tool_call> b>"),
    CASE("hermes", NULL, "a\n<tool_call>\n[1]</tool_call>\n",
         "C<a\n<tool_call>\n[1]</tool_call>\n>"),
    CASE("hermes", NULL, R"(<tool_call>{"nam": 1}</tool_call>)",
         R"(C<<tool_call>{"nam": 1}</tool_call>>)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": ""})", R"(C<<tool_call>{"name": ""}>)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": 5})",
         R"(C<<tool_call>{"name": "f", "arguments": 5}>)"),
    CASE("hermes", NULL, R"(<tool_call>x<tool_call>{"name": "ping"}</tool_call>)",
         "C<<tool_call>x> ping{};"),
    /* breaks after the call has begun */
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"a": 1 2}}</tool_call>)",
         R"(f{"a": 1 ! C<2}}</tool_call>>)",
         R"(C<<tool_call>{"name": "f", "arguments": {"a": 1 2}}</tool_call>>)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"a": "x)", R"(f{"a": "x!)",
         R"(C<<tool_call>{"name": "f", "arguments": {"a": "x>)"),
    CASE("hermes", "think", R"(<think>a <tool_call>{"name": "ping"}</tool_call></think>b)",
         R"(R<a <tool_call>{"name": "ping"}</tool_call>> C<b>)"),

    /* a grammar may take the mention for reasoning, and leave the call free */
    CASE("hermes", "think",
         "Use `<think>`.\n"
         R"(<tool_call>{"name": "f", "arguments": {"p": "a" nonsense)",
         "C<Use `<think>`.\n"
         R"(<tool_call>{"name": "f", "arguments": {"p": "a" nonsense>)"),
    /* broken: only the end is missing, where the model ended; else it is text */
    CASE("hermes", NULL,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"p\": [1, }}\n</tool_call>\n",
         R"(f{"p": [1]};)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"p": {"q": [[1}}}</tool_call>x)",
         R"(f{"p": {"q": [[1]]}}; C<x>)"),
    CASE("hermes", NULL,
         R"(<tool_call>{"name": "f", "arguments": {"p": [{"a": 1], "q": 2}}</tool_call>)",
         R"(f{"p": [{"a": 1}], "q": 2};)"),
    CASE("hermes", NULL,
         R"(<tool_call>{"name": "f", "arguments": {"p": [1, }, "q": 2}}</tool_call>)",
         R"(f{"p": [1]}! C<, "q": 2}}</tool_call>>)",
         R"(C<<tool_call>{"name": "f", "arguments": {"p": [1, }, "q": 2}}</tool_call>>)"),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"p": {"q": [1, true)",
         R"(f{"p": {"q": [1, true]}};)", .ended = true),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"p": "a)", R"(f{"p": "a!)",
         R"(C<<tool_call>{"name": "f", "arguments": {"p": "a>)", .ended = true),
    CASE("hermes", NULL, R"(<tool_call>{"name": "f", "arguments": {"p": 1,)", R"(f{"p": 1!)",
         R"(C<<tool_call>{"name": "f", "arguments": {"p": 1,>)", .ended = true),
    CASE("mistral-args", NULL, R"([TOOL_CALLS]f[ARGS]{"p": [1)", R"(f{"p": [1]};)", .ended = true),
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=f>\n<parameter=p>\n/a\n</function>\n</tool_call>\n",
         R"(f{"p": "/a"};)"),
    CASE("qwen-coder", NULL, "<tool_call>\n<function=f>\n<parameter=p>\n/a\n</function> \n",
         R"(f{"p": "/a"};)"),
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=f>\n<parameter=p>\n/a\n</function>\n</tool_call>\nx</parameter></"
         "function>",
         R"(f{"p": "/a\n</function>\n</tool_call>\nx"};)"),
    CASE("qwen-coder", NULL, "<tool_call>\n<function=f>\n<parameter=p>\n/a\n</parameter>\n",
         R"(f{"p": "/a"};)", .ended = true),
    CASE("qwen-coder", NULL, "<tool_call>\n<function=f>\n<parameter=p>\n/a\n</parameter>\n",
         R"(f{"p": "/a"!)", "C<<tool_call>\n<function=f>\n<parameter=p>\n/a\n</parameter>\n>"),
    CASE("qwen-coder", NULL, "See <function=f>", "C<See <function=f>>", .ended = true),
    CASE("qwen-coder", NULL, "<function=f><parameter=p>1</parameter>no",
         "C<<function=f><parameter=p>1</parameter>no>"),
    CASE("glm", NULL, "<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>/a\n</tool_call>",
         R"(f{"p": "/a"};)"),
    CASE("minimax-m2", NULL,
         "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
         R"(name="p">/a</invoke>)"
         "\n</minimax:tool_call>",
         R"(f{"p": "/a"};)"),
    CASE("seed", NULL,
         R"(<seed:tool_call><function=f><parameter=p>{"a": )"
         R"("</function>"}</function></seed:tool_call>)",
         R"(f{"p": {"a": "</function>"}};)"),

    /* qwen-coder */
    /* No template escapes values. */
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=write>\n<parameter=text>\n<a href=\"x\">&lt;&amp;</a>\n"
         "</parameter>\n</function>\n</tool_call>",
         R"(write{"text": "<a href=\"x\">&lt;&amp;</a>"};)"),
    /* A string of a JSON value contains a tag. */
    CASE(
        "qwen-coder", NULL,
        "<tool_call>\n<function=search_files>\n<parameter=paths>\n[\"a</parameter></function>b\"]\n"
        "</parameter>\n</function>\n</tool_call>",
        R"(search_files{"paths": ["a</parameter></function>b"]};)"),
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=search_files>\n<parameter=paths>\n[\"a\n"
         "</parameter>\n</function>\n</tool_call>",
         R"(search_files{"paths": "[\"a"};)"),
    CASE("qwen-coder", "think",
         "so\n</think>\n\nI "
         "look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
         "<parameter=unit>\ncelsius\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
         "<function=search_files>\n<parameter=pattern>\na|b\n</parameter>\n<parameter=paths>\n"
         R"(["src/", "d )"
         "e\"]\n</parameter>\n<parameter=max_results>\n5\n</parameter>\n</function>\n</tool_call>",
         "R<so> C<I look.> " TWO, .in_reasoning = true),
    CASE("qwen-coder", NULL, "<function=ping>\n</function>\n</tool_call>", "ping{};"),
    CASE("qwen-coder", NULL, "<tool_call><function=ping></function></tool_call>!", "ping{}; C<!>"),
    CASE("qwen-coder", NULL, R"(<tool_call>{"name": "ping"}</tool_call>)", "ping{};"),
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=write>\n<parameter=text>\n\n  \"a\"\t\\ é\n</parameter> is a "
         "tag\n\n</parameter>\n"
         "<parameter=mode>\nnull\n</parameter>\n<parameter=flag>\nTrue\n</"
         "parameter>\n<parameter=any>\n"
         "{'a': None, 'b': [1.5e3, "
         "\"x\"]}\n</parameter>\n<parameter=n>\ntwo\n</parameter>\n</function>\n</tool_call>",
         R"(write{"text": "\n  \"a\"\t\\ é\n</parameter> is a tag\n", "mode": null, )"
         R"("flag": true, )"
         R"("any": {"a": null, "b": [1.5e3, "x"]}, "n": "two"};)"),
    CASE("qwen-coder", NULL,
         "<tool_call>\n<function=write>\n<parameter=any>\n12 "
         "apples\n</parameter>\n<parameter=mode>\n12\n"
         "</parameter>\n<parameter=new>\n\n</parameter>\n</tool_call>",
         R"(write{"any": "12 apples", "mode": "12", "new": ""};)"),
    CASE("qwen-coder", NULL,
         "<function=write>\n<parameter=ref>\n{\"a\": 1}\n</parameter>\n</function>",
         R"(write{"ref": {"a": 1}};)"),
    CASE("qwen-coder", NULL, "<function=f>\nnonsense</function>",
         "C<<function=f>\nnonsense</function>>"),
    CASE("qwen-coder", NULL, "In C++, f<function=3> is", "C<In C++, f<function=3> is>"),
    CASE("qwen-coder", NULL, "<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\nnonsense",
         "f{\"a\": ! C<1\n</parameter>\nnonsense>",
         "C<<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\nnonsense>"),
    CASE("qwen-coder", NULL,
         "<tool_call><function=write>\n<parameter=path>\nx\n</parameter>\n<parameter=bad",
         R"(write{"path": "x"! C<<parameter=bad>)"),
    CASE("qwen-coder", NULL, "<function=f>\n<parameter=a>\n1\n</parameter>\nnonsense",
         "C<<function=f>\n<parameter=a>\n1\n</parameter>\nnonsense>"),
    CASE(
        "seed", "seed",
        "<seed:think>hm</seed:think>\nI "
        "look.\n\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris"
        "</parameter>\n<parameter=unit>celsius</parameter>\n</function>\n</"
        "seed:tool_call>\n<seed:tool_call>\n"
        "<function=search_files>\n<parameter=pattern>a|b</parameter>\n<parameter=paths>['src/', 'd "
        "e']</parameter>\n"
        "<parameter=max_results>5</parameter>\n</function>\n</seed:tool_call>",
        "R<hm> C<I look.> " TWO),

    /* llama3 */
    CASE("llama3", NULL, LLAMA("get_weather", PARIS), "get_weather" PARIS ";"),
    CASE("llama3", NULL,
         "<|python_tag|>" LLAMA("get_weather", PARIS) "; " LLAMA("search_files", FIND) "<|eom_id|>",
         TWO),
    CASE("llama3", NULL, "<|python_tag|>ping.call()", "ping{};"),
    CASE("llama3", NULL, R"(<|python_tag|>get_weather.call(city="Paris", unit='celsius'))",
         "get_weather" PARIS ";"),
    CASE("llama3", NULL, "<|python_tag|>print(1)", "C<<|python_tag|>print(1)>"),
    CASE("llama3", NULL, LLAMA("Bob", "{}"), "C<" LLAMA("Bob", "{}") ">"),
    CASE("llama3", NULL, R"({"name": "ping", "age": 3})", R"(C<{"name": "ping", "age": 3}>)"),
    CASE("llama3", NULL, R"({"name": "ping", "age": 3, "parameters": {}})",
         R"(C<{"name": "ping", "age": 3, "parameters": {}}>)"),
    CASE("llama3", NULL, R"({"name": "ping"})", R"(C<{"name": "ping"}>)"),
    CASE("llama3", NULL, "It is " LLAMA("ping", "{}"), "C<It is " LLAMA("ping", "{}") ">"),

    /* llama4 */
    CASE("llama4", NULL,
         "<|python_start|>I look.<|python_end|>" LLAMA("get_weather", PARIS)
             LLAMA("search_files", FIND) "<|eot|>",
         "C<I look.> " TWO),
    CASE("llama4", NULL, LLAMA("ping", "{}") "<|eom|>", "ping{};"),
    CASE("llama4", NULL, "[ping()]", "ping{};"),
    CASE("llama4", NULL, "<|python_start|>print(1)<|python_end|>", "C<print(1)<|python_end|>>"),
    CASE("llama4", NULL, LLAMA("Bob", "{}"), "C<" LLAMA("Bob", "{}") ">"),
    CASE("llama4-python", NULL,
         "[get_weather(city='Paris', unit='celsius'), search_files(pattern='a|b', "
         "paths=['src/', 'd e'], max_results=5)]<|eot|>",
         TWO),
    CASE("llama4-python", NULL, "<|python_start|>[ping(), ping()]<|python_end|>",
         "ping{}; ping{};"),
    CASE("llama4-python", NULL, "[1, 2, f(x)]", "C<[1, 2, f(x)]>"),
    CASE("llama4-python", NULL, "[unknown(a=1)]", "C<[unknown(a=1)]>"),
    CASE("llama4-python", NULL, "A list: [ping()]", "C<A list: [ping()]>"),
    CASE("llama4-python", NULL, LLAMA("ping", "{}"), "ping{};"),

    /* glm4: a call is known by the name of a tool alone */
    CASE("glm4", NULL, "get_weather\n" PARIS, "get_weather" PARIS ";"),
    CASE("glm4", NULL, "get_weather \n" PARIS "<|assistant|>search_files\n" FIND "<|observation|>",
         TWO),
    CASE("glm4", NULL, "\nping\n{}", "ping{};"),
    CASE("glm4", "think", "<think>hm</think>\nget_weather\n" PARIS, "R<hm> get_weather" PARIS ";"),
    CASE("glm4", NULL, "\nHello\n{}", "C<\nHello\n{}>"),
    CASE("glm4", NULL, "get_weather", "C<get_weather>"),
    CASE("glm4", NULL, "get_weather\nis a tool", "C<get_weather\nis a tool>"),
    CASE("glm4", NULL, "ping" BLANKS "\n{}", "ping{};"),
    CASE("glm4", NULL, "ping " BLANKS "\n{}", "C<ping " BLANKS "\n{}>"),
    CASE("glm4", NULL, "get_weather_now\n{}", "C<get_weather_now\n{}>"),
    CASE("glm4", NULL, "Use ping\n{}", "C<Use ping\n{}>"),
    CASE("glm4", NULL, "I look.<|assistant|>ping\n{}", "C<I look.> ping{};"),
    CASE("glm4", NULL, "a<|assistant|>unknown\n{}", "C<a<|assistant|>unknown\n{}>"),
    CASE("glm4", NULL,
         "ping\n"
         R"({"a": #)",
         R"(ping{"a": ! C<#>)",
         "C<ping\n"
         R"({"a": #>)"),

    /* mistral */
    CASE("mistral-json", "mistral",
         R"([THINK]hm[/THINK]Look[TOOL_CALLS][{"name": "get_weather", "arguments": )" PARIS
         R"(, "id": "call0a001"}, )" SEARCH "]",
         "R<hm> C<Look> " TWO),
    CASE("mistral-args", NULL,
         "[TOOL_CALLS]get_weather[CALL_ID]call0a001[ARGS]" PARIS
         "[TOOL_CALLS]search_files[ARGS]" FIND,
         TWO),
    CASE("mistral-args", NULL, "[TOOL_CALLS] ping {}", "ping{};"),
    CASE("mistral-args", NULL, R"([TOOL_CALLS][{"name": "ping", "arguments": {}}]!)",
         "ping{}; C<!>"),
    CASE("mistral-json", NULL, "a [TOOL_CALLS] b", "C<a [TOOL_CALLS] b>"),
    CASE("mistral-json", NULL, R"([TOOL_CALLS][{"name": "ping"}, 5])", "ping{}; C<, 5]>"),
    CASE("mistral-args", "mistral", "[THINK]hm [TOOL_CALLS]ping[ARGS]{}", "R<hm> ping{};"),

    /* deepseek */
    CASE("deepseek-v3", "think",
         "hm</think>\n\nI look." DS_BEGIN DS_CALL "function" DS_SEP "get_weather\n```json\n" PARIS
         "\n```" DS_CLOSE "\n" DS_CALL "function" DS_SEP "search_files\n```json\n" FIND
         "\n```" DS_CLOSE DS_END,
         "R<hm> C<I look.> " TWO, .in_reasoning = true),
    CASE("deepseek-v3.1", "think",
         "I look." DS_BEGIN DS_CALL "get_weather" DS_SEP PARIS DS_CLOSE DS_CALL
         "search_files" DS_SEP FIND DS_CLOSE DS_END "x",
         "C<I look.> " TWO " C<x>"),
    CASE("deepseek-v3.1", NULL, DS_CALL "ping" DS_SEP DS_CLOSE DS_END, "ping{};"),
    CASE("deepseek-v3.1", NULL, DS_BEGIN "x", "C<" DS_BEGIN "x>"),
    CASE("deepseek-v3.1", "think", "hm " DS_BEGIN DS_CALL "ping" DS_SEP "{}" DS_CLOSE DS_END,
         "R<hm> ping{};", .in_reasoning = true),
    CASE("deepseek-v3.1", NULL, DS_BEGIN DS_CALL "ping" DS_SEP "{}" DS_CLOSE DS_CALL "b{",
         "ping{}; C<" DS_CALL "b{>"),
    CASE("deepseek-dsml", "think",
         "hm</think>I look.\n\n<" DSML "tool_calls>\n<" DSML "invoke "
         R"(name="get_weather">)"
         "\n<" DSML R"(parameter name="city" string="true">Paris</)" DSML "parameter>\n<" DSML
         R"(parameter name="unit" string="true">celsius</)" DSML "parameter>\n</" DSML
         "invoke>\n<" DSML R"(invoke name="search_files">)"
         "\n<" DSML R"(parameter name="pattern" string="true">a|b</)" DSML "parameter>\n<" DSML
         R"(parameter name="paths" string="false">["src/", "d e"]</)" DSML "parameter>\n<" DSML
         R"(parameter name="max_results" string="false">5</)" DSML "parameter>\n</" DSML
         "invoke>\n</" DSML "tool_calls>",
         "R<hm> C<I look.> " TWO, .in_reasoning = true),
    CASE("deepseek-dsml", NULL,
         "<" DSML "function_calls><" DSML R"(invoke name="f"><)" DSML
         R"(parameter name="a" string="true">5</)" DSML "parameter></" DSML "invoke></" DSML
         "function_calls>",
         R"(f{"a": "5"};)"),
    CASE("deepseek-dsml", NULL, "<" DSML "tool_calls><b>", "C<<" DSML "tool_calls><b>>"),

    /* hyperclova */
    CASE("hyperclova", NULL, "\nThe answer.", "C<The answer.>"),
    CASE("hyperclova", NULL,
         "/think\nso\nit is<|im_end|>\n<|im_start|>assistant\nThe answer.<|im_end|>\n",
         "R<so\nit is> C<The answer.>"),
    CASE("hyperclova", NULL, "/think\nso\n<|im_start|>assistant\nThe answer.",
         "R<so> C<The answer.>"),
    CASE("hyperclova", NULL, "so<|im_end|>\n<|im_start|>assistant\nThe answer.",
         "R<so> C<The answer.>", .in_reasoning = true),
    CASE("hyperclova", NULL,
         "/think\nso<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[{\"name\": "
         R"("get_weather", )"
         R"("arguments": )" PARIS "}, " SEARCH "]<|im_end|>",
         "R<so> " TWO),
    CASE("hyperclova", NULL,
         " -> tool/function_call\n[{\"name\": \"ping\", \"arguments\": {}}]<|im_end|>\n",
         "ping{};"),
    CASE("hyperclova", NULL,
         "I look.<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[{\"name\": \"ping\"}]",
         "C<I look.> ping{};"),
    CASE("hyperclova", NULL, "See a -> tool/function_call\n[1] and /think\nso",
         "C<See a -> tool/function_call\n[1] and /think\nso>"),
    CASE("hyperclova", NULL, " -> tool/function_call\n[nonsense]<|im_end|>",
         "C<-> tool/function_call\n[nonsense]>"),

    /* harmony */
    CASE("harmony", NULL,
         "<|channel|>analysis<|message|>hm, "
         "so<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
         "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>" PARIS
         "<|call|>"
         "<|start|>assistant<|channel|>commentary to=functions.search_files "
         "<|constrain|>json<|message|>" FIND "<|call|>",
         "R<hm, so> C<I look.> " TWO),
    CASE("harmony", NULL, "<|channel|>final<|message|>Hello<|return|>", "C<Hello>"),
    CASE("harmony", NULL,
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final "
         "<|constrain|>json"
         R"(<|message|>{"a": 1})",
         R"(R<hm> C<{"a": 1}>)"),
    CASE("harmony", NULL, " to=functions.ping<|channel|>commentary<|message|>{}", "ping{};"),
    CASE("harmony", NULL, R"(<|channel|>analysis to=python code<|message|>{"x": 1}<|call|>)",
         R"(python{"x": 1};)"),
    CASE("harmony", NULL, "Plain text", "C<Plain text>"),
    CASE("harmony", NULL,
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>nonsense<|call|>",
         "C<to=functions.f <|constrain|>json<|message|>nonsense>"),

    /* glm, hunyuan */
    CASE("glm", "think",
         "\n<think>hm</think>\nI "
         "look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
         "<arg_key>unit</arg_key>\n<arg_value>celsius</arg_value>\n</"
         "tool_call>\n<tool_call>search_files<arg_key>pattern"
         R"(</arg_key><arg_value>a|b</arg_value><arg_key>paths</arg_key><arg_value>["src/", "d )"
         R"(e"]</arg_value>)"
         "<arg_key>max_results</arg_key><arg_value>5</arg_value></tool_call>",
         "R<hm> C<I look.> " TWO),
    CASE("glm", NULL, "<tool_call>ping</tool_call>", "ping{};"),
    CASE("glm", NULL, "<tool_call>ping\n</tool_call>a", "ping{}; C<a>"),
    CASE("glm", NULL, "<tool_call>two words</tool_call>", "C<<tool_call>two words</tool_call>>"),
    CASE("glm", NULL, R"(<tool_call>{"name": 1})", R"(C<<tool_call>{"name": 1}>)"),
    CASE("hunyuan", "hunyuan",
         "<think:opensource>hm</think:opensource>I "
         "look.<tool_calls:opensource>\n<tool_call:opensource>get_weather"
         "<tool_sep:opensource>\n<arg_key:opensource>city</"
         "arg_key:opensource>\n<arg_value:opensource>Paris"
         "</arg_value:opensource>\n<arg_key:opensource>unit</"
         "arg_key:opensource>\n<arg_value:opensource>celsius"
         "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
         "R<hm> C<I look.> get_weather" PARIS ";"),
    CASE("hunyuan", NULL, "<tool_call:opensource>ping<tool_sep:opensource></tool_call:opensource>",
         "ping{};"),

    /* kimi */
    CASE("kimi-k2", NULL,
         "I look." K2 K2_CALL "functions.get_weather:0" K2_ARGS PARIS K2_CLOSE K2_CALL
         "functions.search_files:1" K2_ARGS FIND K2_CLOSE K2_END,
         "C<I look.> " TWO),
    CASE("kimi-k2", "think", "hm" K2 K2_CALL " ping:0 " K2_ARGS K2_CLOSE K2_END " x",
         "R<hm> ping{}; C<x>", .in_reasoning = true),
    CASE("kimi-k2", NULL, K2 K2_CALL "functions.f:0" K2_ARGS "5",
         "C<" K2 K2_CALL "functions.f:0" K2_ARGS "5>"),
    CASE("kimi-k3", "kimi-k3",
         "hm<|close|>think<|sep|><|open|>response<|sep|>I "
         "look.<|close|>response<|sep|><|open|>tools<|sep|>"
         R"(<|open|>call tool="get_weather" index="1"<|sep|>)" K3_ARG("city", "string", "Paris")
             K3_ARG("unit", "string",
                    "celsius") R"(<|close|>call<|sep|><|open|>call tool="search_files" )"
                               R"(index="2"<|sep|>)" K3_ARG("pattern", "string", "a|b")
                                   K3_ARG("paths", "array", R"(["src/", "d e"])") K3_ARG(
                                       "max_results", "number",
                                       "5") "<|close|>call<|sep|><|close|>tools<|sep|><|close|>"
                                            "message<|sep|>",
         "R<hm> C<I look.> " TWO, .in_reasoning = true),
    CASE("kimi-k3", NULL,
         R"(<|open|>tools<|sep|><|open|>call tool="ping" index="1"<|sep|><|close|>call<|sep|>)",
         "ping{};"),

    /* minimax, minicpm */
    CASE("minimax-m2", "think",
         "hm\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
         R"(name="city">Paris)"
         "</parameter>\n<parameter name=\"unit\">celsius</parameter>\n</invoke>\n<invoke "
         R"(name="search_files">)"
         "\n"
         "<parameter "
         R"(name="pattern">a|b</parameter>)"
         "\n"
         R"(<parameter name="paths">["src/", "d )"
         R"(e"]</parameter>)"
         "\n"
         "<parameter name=\"max_results\">5</parameter>\n</invoke>\n</minimax:tool_call>",
         "R<hm> C<I look.> " TWO, .in_reasoning = true),
    CASE("minimax-m2", NULL,
         R"(<minimax:tool_call><invoke name="ping"></invoke></minimax:tool_call>)", "ping{};"),
    CASE("minimax-m2", NULL, "<minimax:tool_call>hm", "C<<minimax:tool_call>hm>"),

    /* atem */
    CASE("atem", NULL,
         " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>I look.<|eom|>"
         "<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke "
         "name=\"get_weather\">\n<atem:parameter name=\"city\">Paris</atem:parameter>\n"
         "<atem:parameter name=\"unit\">celsius</atem:parameter>\n</atem:invoke>\n"
         "</atem:function_calls><|eom|><|start|>assistant to=search_files<|message|>"
         "<atem:function_calls>\n<atem:invoke name=\"search_files\">\n<atem:parameter "
         R"(name="pattern">a|b</atem:parameter>)"
         "\n"
         R"(<atem:parameter name="paths">["src/",)"
         R"( "d )"
         "e\"]</atem:parameter>\n<atem:parameter name=\"max_results\">5</atem:parameter>\n"
         "</atem:invoke>\n</atem:function_calls><|eot|>",
         "R<hm> C<I look.> " TWO),
    CASE("atem", NULL, " to=user<|message|>Hello<|eot|>", "C<Hello>"),
    CASE("atem", NULL, "Plain text", "C<Plain text>"),
    CASE("atem", NULL,
         "<|message|><atem:function_calls><atem:invoke "
         R"(name="ping"></atem:invoke></atem:function_calls>)",
         "ping{};"),
    CASE("atem", NULL, " to=f<|message|>nonsense<|eot|>", "C<to=f<|message|>nonsense>"),
    CASE("minimax-m1", NULL, "<tool_calls>\n" WEATHER "\n" SEARCH "\n</tool_calls>", TWO),
    CASE("minicpm", NULL,
         R"(<function name="get_weather"><param name="city">Paris</param><param )"
         R"(name="unit">celsius</param></function>)"
         "\n"
         R"(<function name="search_files"><param name="pattern"><![CDATA[a|b]]></param><param )"
         R"(name="paths">['src/', 'd e'])"
         R"(</param><param name="max_results">5</param></function>)",
         TWO),

    /* gemma4 */
    CASE(
        "gemma4", "gemma4",
        "<|channel>thought\nhm\n<channel|><|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,unit:"
        "<|"
        R"("|>celsius<|"|>})"
        "<tool_call|><|tool_call>call:search_files{max_results:5,options:{context:None,ignore_case:"
        R"(true},paths:[<|"|>)"
        R"(src/<|"|>],pattern:<|"|>a"\d)"
        "\n"
        R"(<|<|"|>}<tool_call|>)",
        R"(R<hm> get_weather{"city":"Paris","unit":"celsius"}; )"
        R"(search_files{"max_results":5,"options":{)"
        R"("context":null,"ignore_case":true},"paths":["src/)"
        R"("],"pattern":"a\"\\d\n<|"};)"),
    CASE("gemma4", NULL, "<|tool_call>call:ping{}<tool_call|>", "ping{};"),
    CASE("gemma4", NULL, "<|tool_call>call:f{a:b}<tool_call|>", R"(f{"a":! C<}<tool_call|>>)",
         "C<<|tool_call>call:f{a:b}<tool_call|>>"),

    /* lfm2 */
    CASE("lfm2", NULL,
         R"(<|tool_call_start|>[get_weather(city="Paris", unit='celsius'), )"
         "search_files(pattern='a|b', "
         R"(paths=['src/', "d e"],)"
         " max_results=5)]<|tool_call_end|>Done",
         TWO " C<Done>"),
    CASE("lfm2", NULL, "<|tool_call_start|>[ping()]<|tool_call_end|>", "ping{};"),
    CASE("lfm2", NULL,
         R"(<|tool_call_start|>[f(a='it\'s "x" \x41\n', b=True, c={'k': None})]<|tool_call_end|>)",
         R"(f{"a": "it's \"x\" \u0041\n", "b": true, "c": {"k": null}};)"),
    CASE("lfm2", NULL, "<|tool_call_start|>print", "C<<|tool_call_start|>print>"),

    /* olmo3 */
    CASE("olmo3", "think",
         "so</think>I look.\n<function_calls>\nget_weather(city='Paris', unit=\"celsius\")\n"
         R"(search_files(pattern='a|b', paths=["src/", 'd e'], max_results=5))"
         "\n"
         "</function_calls>",
         "R<so> C<I look.> " TWO, .in_reasoning = true),
    CASE("olmo3", NULL, "<function_calls>ping()</function_calls>Done", "ping{}; C<Done>"),
    CASE("olmo3", NULL, "<function_calls>\nf(a=true, b=None, c=null)\n</function_calls>",
         R"(f{"a": true, "b": null, "c": null};)"),
    CASE("olmo3", NULL, "<function_calls>\nping()\nnot a call", "ping{}; C<not a call>"),
    CASE("olmo3", NULL, "Write <function_calls> here", "C<Write <function_calls> here>"),

    /* lists */
    CASE("command-r", NULL,
         "Action:\n```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        "
         R"("parameters": )" PARIS
         "\n    },\n    {\"tool_name\": \"search_files\", \"parameters\": " FIND "}\n]```",
         TWO),
    CASE("command-r", NULL, "Action: none", "C<Action: none>"),
    CASE("command-r7b", "command-r7b",
         "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n"
         R"(    {"tool_call_id": "0", )"
         R"("tool_name": )"
         R"("get_weather", "parameters": )" PARIS "},\n"
         R"(    {"tool_call_id": "1", "tool_name": "search_files", )"
         R"("parameters": )" FIND "}\n]<|END_ACTION|>",
         "R<hm> " TWO),
    CASE("command-r7b", NULL, "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "C<Hi>"),
    CASE("apertus", "apertus",
         R"(<|inner_prefix|>hm<|inner_suffix|><|tools_prefix|>[{"get_weather": )" PARIS
         R"(}, {"search_files": )" FIND "}]<|tools_suffix|>",
         "R<hm> " TWO),
    CASE("nemotron", "think", "hm\n</think>\n\n<TOOLCALL>[" WEATHER ", " SEARCH "]</TOOLCALL>",
         "R<hm> " TWO, .in_reasoning = true),
    CASE("falcon", NULL, "I look.\n<tool_call>\n[\n  " WEATHER ",\n  " SEARCH "\n]\n</tool_call>",
         "C<I look.> " TWO),
    CASE("falcon", NULL,
         "<tool_call>\n[\n  {\n    \"id\": \"call_1\",\n    \"type\": \"function\",\n    "
         "\"function\": {\n      \"name\": \"ping\",\n      \"arguments\": {}\n    }\n  }\n"
         "]\n</tool_call>",
         "ping{};"),
    CASE("falcon", NULL, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
         "ping{};"),
    CASE("falcon", NULL, "<tool_call>\n[1]\n</tool_call>", "C<<tool_call>\n[1]\n</tool_call>>"),

    CASE("apriel", NULL,
         "Look\n"
         R"(<tool_calls>[{"name": "get_weather", "arguments": )" PARIS R"(, "id": "x"}, {"name": )"
         R"("search_files", "arguments": )" FIND "}]</tool_calls>",
         "C<Look> " TWO),
    CASE("hunyuan-a13b", "think",
         "<think>\nhm\n</think>\n<answer>\nIt is <answer>5</answer> here.\n</answer>\n",
         "R<hm> C<It is <answer>5</answer> here.>"),
    CASE("hunyuan-a13b", "think",
         "hm\n</think>\n<answer>\nI look.\n<tool_calls>[" WEATHER ", " SEARCH
         "]</tool_calls>\n</answer>",
         "R<hm> C<I look.> " TWO, .in_reasoning = true),
    CASE("hunyuan-a13b", NULL, R"(<tool_calls>[{"name": "ping", "arguments": {}}]</tool_calls>)",
         "ping{};"),
    CASE("hunyuan-a13b", NULL, "助手：It rains.", "C<It rains.>"),
    CASE("hunyuan-a13b", NULL, "<answer>\n助手：It rains.</answer>", "C<It rains.>"),
    CASE("hunyuan-a13b", NULL, "An <answer> and 助手： in text</answer>.",
         "C<An <answer> and 助手： in text</answer>.>"),
    CASE("hunyuan-a13b", NULL, "<answer>A list of <tool_calls>[] is empty</answer>",
         "C<A list of <tool_calls>[] is empty>"),
    CASE("hunyuan-a13b", NULL, "<answer>It rai", "C<It rai>"),
    CASE("jamba", NULL, " Sure.<tool_calls>[\n    " WEATHER ",\n    " SEARCH "\n]</tool_calls>",
         "C< Sure.> " TWO),
    CASE("jamba", NULL, "<tool_calls>[\n]</tool_calls>", "C<<tool_calls>[\n]</tool_calls>>"),
    CASE("hunyuan-dense", "think",
         "<think>\nhm\n</think>\n<tool_calls><tool_call>get_weather\n```json\n" PARIS
         "\n```</tool_call>\n<tool_call>search_files\n```json\n" FIND
         "\n```</tool_call></tool_calls>",
         "R<hm> " TWO),
    CASE("hunyuan-dense", NULL,
         "<tool_calls>\n<tool_call>get_weather\n```json\n" PARIS
         "\n```</tool_call>\n</tool_calls>\nDone",
         "get_weather" PARIS "; C<Done>"),
    CASE("hunyuan-dense", NULL,
         "<answer>\nI look.\n<tool_calls><tool_call>ping\n```\n{}\n```</tool_call></tool_calls>\n"
         "</answer>\n",
         "C<I look.> ping{};"),
    CASE("hunyuan-dense", NULL, "<tool_call>ping\n{}</tool_call>\nDone", "ping{}; C<Done>"),
    CASE("hunyuan-dense", "think",
         "<think>\n\n</think>\n<answer>\nIt is <answer>5</answer> here.\n</answer>",
         "C<It is <answer>5</answer> here.>"),
    CASE("hunyuan-dense", NULL, "Write <tool_calls> or <tool_call>x</tool_call>",
         "C<Write <tool_calls> or <tool_call>x</tool_call>>"),
    CASE("hunyuan-dense", NULL, "<tool_calls><tool_call>ping\n```json\n[1]\n```</tool_call>",
         "C<<tool_calls><tool_call>ping\n```json\n[1]\n```</tool_call>>"),
    CASE("internlm", NULL,
         "I look.<|action_start|><|plugin|>\n" LLAMA("get_weather", PARIS) "<|action_end|>",
         "C<I look.> get_weather" PARIS ";"),
    CASE("internlm", NULL,
         "<|action_start|><|plugin|>\n" WEATHER
         "<|action_end|><|action_start|><|plugin|>" LLAMA("search_files", FIND) "<|action_end|>\n",
         TWO),
    CASE("internlm", NULL, "<|action_start|><|plugin|>" LLAMA("ping", "{}") "<|action_end|>.",
         "ping{}; C<.>"),
    CASE("internlm", NULL,
         "<|action_start|><|interpreter|>\n```python\nprint(1)\n```<|action_end|>",
         "C<<|action_start|><|interpreter|>\n```python\nprint(1)\n```<|action_end|>>"),
    CASE("internlm", NULL, "<|action_start|><|plugin|>\n[1]<|action_end|>",
         "C<<|action_start|><|plugin|>\n[1]<|action_end|>>"),
    CASE("plamo3", "plamo3",
         PLAMO("begin_think") "hm" PLAMO("end_think") "I look." PLAMO("begin_tool_requests")
             PLAMO_CALL("get_weather", "<|plamo:constrain|>json<|plamo:msg|>", PARIS)
                 PLAMO_CALL("search_files", "<|plamo:msg|>", FIND) PLAMO("end_tool_requests"),
         "R<hm> C<I look.> " TWO),
    CASE("plamo3", "plamo3",
         "hm" PLAMO("begin_tool_requests") PLAMO_CALL("ping", "<|plamo:msg|>", "{}")
             PLAMO("end_tool_requests"),
         "R<hm> ping{};", .in_reasoning = true),
    CASE("plamo3", NULL, "A tag: " PLAMO("begin_tool_requests") " and " PLAMO("begin_tool_name"),
         "C<A tag: " PLAMO("begin_tool_requests") " and " PLAMO("begin_tool_name") ">"),
    CASE("plamo3", NULL, PLAMO("begin_tool_requests") PLAMO_CALL("ping", "<|plamo:msg|>", "[1]"),
         "C<" PLAMO("begin_tool_requests") PLAMO_CALL("ping", "<|plamo:msg|>", "[1]") ">"),
    CASE("firefunction", NULL, " functools[" WEATHER ", " SEARCH "]", TWO),
    CASE("firefunction", NULL, "python has functools[1]", "C<python has functools[1]>"),
    CASE("granite", NULL, "<|tool_call|>[" WEATHER ", " SEARCH "]", TWO),
    CASE("granite", NULL, "Look <|tool_call|> here", "C<Look <|tool_call|> here>"),
    CASE("phi4", NULL, "Look\n<|tool_call|>[" WEATHER ", " SEARCH "]<|/tool_call|>",
         "C<Look> " TWO),
    CASE("gigachat", NULL, "Look<|message_sep|>\n\nfunction call<|role_sep|>\n" WEATHER,
         "C<Look> get_weather" PARIS ";"),

    /* ernie */
    CASE("ernie", "think", "so\n</think>\n\n<response>\nIt rains.\n</response>\n",
         "R<so> C<It rains.>", .in_reasoning = true),
    CASE("ernie", "think", "so\n</think>\nIt rains.", "R<so> C<It rains.>", .in_reasoning = true),
    CASE("ernie", "think",
         "so\n</think>\n\n\n<tool_call>\n" WEATHER "\n</tool_call>\n\n<tool_call>\n" SEARCH
         "\n</tool_call>\n",
         "R<so> " TWO, .in_reasoning = true),
    CASE("ernie", NULL,
         "<response>\nI look.\n</response>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": "
         "{}}\n</tool_call>",
         "C<I look.> ping{};"),
    CASE("ernie", NULL, "<response>\nUse <response>5</response> here.\n</response>",
         "C<Use <response>5</response> here.>"),
    CASE("ernie", NULL, "A <response> in text</response>.", "C<A <response> in text</response>.>"),
    CASE("ernie", NULL, "<response>A <tool_call>{no</response>", "C<A <tool_call>{no>"),

    /* functionary, solar, generic */
    CASE("functionary", NULL,
         "<function=get_weather>" PARIS "</function><function=search_files>" FIND
         "</function><|eom_id|>",
         TWO),
    CASE("functionary", NULL, "<function=ping></function>", "ping{};"),
    CASE("solar", "solar",
         "<|think|>hm<|end|><|begin|>assistant<|content|>I "
         "look.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>"
         "a1<|tool_call:name|>get_weather<|tool_call:args|>" PARIS
         "<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>"
         "search_files<|tool_call:args|>" FIND "<|tool_call:end|><|calls|>",
         "R<hm> C<I look.> " TWO),
    CASE("generic", NULL,
         "Look\n\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\n",
         "C<Look> ping{};"),
};

const size_t n_toolcall_cases = sizeof(toolcall_cases) / sizeof(toolcall_cases[0]);
