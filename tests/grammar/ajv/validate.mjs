// Reads lines of {"schema": ..., "texts": [...]} and validates every text with Ajv. Prints what is not valid.
import Ajv from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { createInterface } from "node:readline";

let texts = 0, bad = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const { schema, texts: list } = JSON.parse(line);
  const ajv = new Ajv({ strict: false });
  formats(ajv);
  const validate = ajv.compile(schema);
  for (const text of list) {
    texts++;
    let value;
    try {
      value = JSON.parse(text);
    } catch (e) {
      bad++;
      console.log(`# not JSON: ${JSON.stringify(text)}`);
      continue;
    }
    if (!validate(value)) {
      bad++;
      console.log(`# not valid: ${text}\n# schema: ${JSON.stringify(schema)}\n# ${ajv.errorsText(validate.errors)}`);
    }
  }
}
console.log(`# ${texts} texts, ${bad} not valid`);
process.exit(bad || !texts ? 1 : 0);
