// test(name, f) and run(): prints TAP.
const tests = [];

export const test = (name, f) => tests.push([name, f]);

// Four agents, each with its own instructions, ask about a picture in three turns: three of them at the same time, and the
// last when their prompts have ended. @ask(instructions, turns) sends a conversation: [role, text] for each message; the
// picture belongs to the first.
export async function look(ask) {
    const agent = async (name) => {
        const turns = [["user", "What is on it?"]];
        for (let i = 0; i < 3; i++) {
            await ask(`You are ${name}.`, turns);
            turns.push(["assistant", "A chat."], ["user", `What else, in part ${i + 2}?`]);
        }
    };
    await Promise.all(["Ada", "Ben", "Cleo"].map(agent));
    await agent("Dora");
}

export async function run() {
    const wanted = process.env.WANTED;
    const chosen = tests.filter(([name]) => !wanted || name.includes(wanted));
    let failed = 0;
    console.log(`1..${chosen.length}`);
    for (const [i, [name, f]] of chosen.entries()) {
        try {
            await f();
            console.log(`ok ${i + 1} - ${name}`);
        } catch (e) {
            failed++;
            console.error(e);
            console.log(`not ok ${i + 1} - ${name}`);
        }
    }
    process.exit(failed ? 1 : 0);
}
