// An engine of the published packages over SQS: one run for each step of a plan, all at once. Prints what became of each.
import { SQSClient } from '@aws-sdk/client-sqs';
import { InMemoryStateStore, WorkflowEngine } from '@dudousxd/nestjs-durable-core';
import { SqsTransport } from '@dudousxd/nestjs-durable-transport-sqs';

let text = '';
for await (const part of process.stdin.setEncoding('utf8')) text += part;
const plan = JSON.parse(text);
const client = new SQSClient({ endpoint: plan.endpoint, region: 'eu-central-1' });
const transport = new SqsTransport({ client, prefix: plan.prefix, autoCreate: true, waitTimeSeconds: 1 });
const engine = new WorkflowEngine({ store: new InMemoryStateStore(), transport });

engine.register('one', '1', async (ctx, step) => ({ value: await ctx.step(step.name, step.input, step.options) }));

const timers = setInterval(() => engine.resumeDueTimers(), 50);

const outcomes = await Promise.all(
  plan.steps.map(async (step, number) => {
    const id = `${plan.run}-${number}`;
    await engine.start('one', step, id);
    const run = await engine.waitForRun(id, { timeoutMs: 60000, until: 'terminal' });
    return { status: run.status, output: run.output, error: run.error };
  }),
);
clearInterval(timers);
process.stdout.write(JSON.stringify(outcomes), () => process.exit(0));
