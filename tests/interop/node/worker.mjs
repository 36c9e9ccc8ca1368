// A worker of the published transport: serves one group until it is ended, and says when it begins.
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executor } from './executor.mjs';

const [url, group] = process.argv.slice(2);
const transport = new DbTransport({ executor: executor(url), group, pollMs: 20, batchSize: 3 });

transport.handle('who', async () => 'node');
transport.handle('hold', () => new Promise(() => {}));
process.stdout.write('ready\n');
