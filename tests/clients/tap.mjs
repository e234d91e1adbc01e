// test(name, f) and run(): prints TAP.
const tests = [];

export const test = (name, f) => tests.push([name, f]);

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
