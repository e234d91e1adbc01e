// forms.cjs: reads cases, each a tokenizer.json as a text and texts, and writes a line for each: the ids and the decoded texts of Hugging Face's own library, or its error.
const fs = require("fs");
const { Tokenizer } = require("@anush008/tokenizers");

async function run(one) {
    const tokenizer = Tokenizer.fromString(one.tokenizer);
    const ids = [], decoded = [];
    for (const text of one.texts) {
        const encoding = await tokenizer.encode(text, null, { addSpecialTokens: false });
        const list = encoding.getIds();
        ids.push(list.join(" "));
        decoded.push(Buffer.from(list.length ? await tokenizer.decode(list, false) : "").toString("hex"));
    }
    return { ids, decoded };
}

(async () => {
    for (const one of JSON.parse(fs.readFileSync(0, "utf8"))) {
        const done = await run(one).catch((e) => ({ error: String(e) }));
        fs.writeFileSync(1, JSON.stringify(done) + "\n");
    }
})();
