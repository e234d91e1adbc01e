// ids.cjs TOKENIZER.json TEXTS.json [--around | --decode]: the ids that Hugging Face's own library gives for each text, a line each; with --around those
// that it adds around texts too, with --decode the text that it makes of the ids, in hexadecimal.
const fs = require("fs");
const { Tokenizer } = require("@anush008/tokenizers");

const [file, texts, mode] = process.argv.slice(2);
const tokenizer = Tokenizer.fromFile(file);

async function line(text) {
    const encoding = await tokenizer.encode(text, null, { addSpecialTokens: mode === "--around" });
    const ids = encoding.getIds();
    if (mode !== "--decode") return ids.join(" ");
    return Buffer.from(ids.length ? await tokenizer.decode(ids, false) : "").toString("hex");
}

(async () => {
    const lines = [];
    for (const text of JSON.parse(fs.readFileSync(texts, "utf8"))) lines.push(await line(text));
    fs.writeFileSync(1, lines.join("\n") + "\n");
})();
