// A worker of the published transport whose handler does nothing: `node noop.mjs URL GROUP BATCH POLL-SECONDS`.
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executor } from './executor.mjs';

const [url, group, batch, poll] = process.argv.slice(2);
const transport = new DbTransport({
  executor: executor(url), group, pollMs: Number(poll) * 1000, batchSize: Number(batch), autoCreate: false,
});

transport.handle(group, async () => null);
