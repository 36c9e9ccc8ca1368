// A worker of the published transport: serves one group until it is ended, and says when it begins.
import { FatalError } from '@dudousxd/nestjs-durable-core';
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executor } from './executor.mjs';

const [url, group] = process.argv.slice(2);
const transport = new DbTransport({ executor: executor(url), group, pollMs: 20, batchSize: 3 });

transport.handle('who', async () => 'node');
transport.handle('echo', async (input) => input);
transport.handle('rain', async () => {
  throw Object.assign(new Error('it rains'), { code: 'wet' });
});
transport.handle('fatal', async () => {
  throw new FatalError('card declined', 'declined');
});
let showers = 0;
transport.handle('shower', async (input) => {
  if (++showers < 3) throw new Error('a shower');
  return input;
});
transport.handle('hold', () => new Promise(() => {}));
process.stdout.write('ready\n');
