// An engine of the published packages: one run for each step of a plan, all at once. Prints what became of each.
import { InMemoryStateStore, WorkflowEngine } from '@dudousxd/nestjs-durable-core';
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executor } from './executor.mjs';

let text = '';
for await (const part of process.stdin.setEncoding('utf8')) text += part;
const plan = JSON.parse(text);
const sql = executor(plan.url);
const transport = new DbTransport({ executor: sql, pollMs: 20, batchSize: 50 });
const engine = new WorkflowEngine({ store: new InMemoryStateStore(), transport });

engine.register('one', '1', async (ctx, step) => ({ value: await ctx.step(step.name, step.input, step.options) }));

const timers = setInterval(() => engine.resumeDueTimers(), 50);

const outcomes = await Promise.all(
  plan.steps.map(async (step, number) => {
    const id = `${plan.run}-${number}`;
    await engine.start('one', step, id);
    const run = await engine.waitForRun(id, { timeoutMs: 40000, until: 'terminal' });
    return { status: run.status, output: run.output, error: run.error };
  }),
);
clearInterval(timers);
await transport.close();
await sql.end();
process.stdout.write(JSON.stringify(outcomes), () => process.exit(0));
